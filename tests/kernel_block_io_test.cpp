// What every BlockIo on files of the kernel does, beyond the conformance suite.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/signals_blocked.hpp"
#include "block_io_conformance.hpp"
#include "posix/posix_block_io.hpp"
#include "strata/error.hpp"
#include "support/kernel_io.hpp"
#if STRATA_HAS_URING
#include "uring/uring_block_io.hpp"
#endif

namespace strata::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using MakeLoggingIo =
    std::function<std::unique_ptr<BlockIo>(bool direct, files::QueueDepth depth, LogSink log)>;

struct Adapter {
  std::string name;
  MakeLoggingIo make;
};

void PrintTo(const Adapter& adapter, std::ostream* out) { *out << adapter.name; }

std::vector<Adapter> adapters() {
  std::vector<Adapter> all{
      {"posix", [](bool direct, files::QueueDepth depth, LogSink log) -> std::unique_ptr<BlockIo> {
         return std::make_unique<PosixBlockIo>(
             PosixBlockIo::Options{.depth = depth, .direct = direct, .log = std::move(log)});
       }}};
#if STRATA_HAS_URING
  all.push_back({"io_uring",
                 [](bool direct, files::QueueDepth depth, LogSink log) -> std::unique_ptr<BlockIo> {
                   return std::make_unique<UringBlockIo>(UringBlockIo::Options{
                       .depth = depth, .direct = direct, .log = std::move(log)});
                 }});
#endif
  return all;
}

// Empty where the adapter can be made here, otherwise why not.
std::string why_not(const Adapter& adapter) {
  try {
    adapter.make(true, {1, 1}, {});
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<IoUnderTest> conformance_cases() {
  std::vector<IoUnderTest> all;
  for (const Adapter& adapter : adapters()) {
    const auto may_make = [adapter] {
      const std::string reason = why_not(adapter);
      if (reason.empty()) return true;
      [&] { GTEST_SKIP() << reason; }();
      return false;
    };
    for (IoUnderTest& io : kernel_io_cases(
             [adapter](bool direct, files::QueueDepth depth) {
               return adapter.make(direct, depth, {});
             },
             may_make)) {
      io.label = adapter.name + "_" + io.label;
      all.push_back(std::move(io));
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Kernel, BlockIoConformance, testing::ValuesIn(conformance_cases()),
                         io_name);
INSTANTIATE_TEST_SUITE_P(Kernel, BlockIoConformanceDeathTest,
                         testing::ValuesIn(conformance_cases()), io_name);

// What an Error says, or "no error".
struct Refusal {
  ErrorCode code = ErrorCode::closed;
  std::string text = "no error";
  ErrorContext context;
};

Refusal refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.context()};
  }
  return {};
}

class KernelBlockIoTest : public testing::TestWithParam<Adapter> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
    io_ = make(true);
  }
  static std::unique_ptr<BlockIo> make(bool direct, LogSink log = {}) {
    return GetParam().make(direct, {4, 4}, std::move(log));
  }
  Refusal prepare(const std::string& root, const std::string& below = "/run/rank-0",
                  bool allow_tmpfs = false) {
    return refusal([&] { io_->prepare_directory(root, root + below, allow_tmpfs); });
  }
  Refusal open(const std::string& path, Bytes size) {
    return refusal([&] { io_->close(io_->open({path, size}), true); });
  }
  std::string root() const { return scratch_.path(); }

  ScratchDirectory scratch_;
  std::unique_ptr<BlockIo> io_;
};

INSTANTIATE_TEST_SUITE_P(Adapters, KernelBlockIoTest, testing::ValuesIn(adapters()),
                         [](const auto& adapter) { return adapter.param.name; });

TEST_P(KernelBlockIoTest, direct_io_says_so_and_asks_for_the_sectors_of_the_device) {
  const FileId file = io_->open({root() + "/data", 1_MiB});
  if (!io_->direct(file)) GTEST_SKIP() << root() << " has no O_DIRECT";
  EXPECT_GE(io_->alignment(file).offset, 512_B);
  io_->close(file, true);
  const auto cached = make(false);
  const FileId other = cached->open({root() + "/data", 1_MiB});
  EXPECT_FALSE(cached->direct(other));
  EXPECT_EQ(cached->alignment(other).offset, 1_B);
  EXPECT_EQ(cached->alignment(other).memory, 1_B);
  cached->close(other, true);
}

TEST_P(KernelBlockIoTest, sectors_of_4096_bytes_are_asked_for) {
  std::string why_not;
  const auto system = LoopFileSystem::mount({.sector = 4_KiB}, why_not);
  if (system == nullptr) GTEST_SKIP() << why_not;
  const FileId file = io_->open({system->path() + "/data", 1_MiB});
  EXPECT_TRUE(io_->direct(file));
  EXPECT_EQ(io_->alignment(file).offset, 4_KiB);
  io_->close(file, true);
}

TEST_P(KernelBlockIoTest, files_and_directories_are_private_and_preallocated) {
  ::umask(0);
  ASSERT_EQ(prepare(root()).text, "no error");
  const std::string path = root() + "/run/rank-0/data";
  const FileId file = io_->open({path, 3_MiB});
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_EQ(status.st_size, 3 << 20);
  EXPECT_GE(status.st_blocks * 512, 3 << 20);
  ASSERT_EQ(::stat((root() + "/run").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  ASSERT_EQ(::stat((root() + "/run/rank-0").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  io_->close(file, true);
  EXPECT_FALSE(std::filesystem::exists(path));
  io_->remove_directory(root(), root() + "/run/rank-0");
  EXPECT_FALSE(std::filesystem::exists(root() + "/run"));
  EXPECT_TRUE(std::filesystem::exists(root()));
}

TEST_P(KernelBlockIoTest, a_missing_root_is_told_with_what_to_do) {
  const Refusal told = prepare(root() + "/missing");
  EXPECT_EQ(told.code, ErrorCode::io);
  EXPECT_THAT(told.text, HasSubstr("nvme directory " + root() +
                                   "/missing does not exist; create it or set nvme.directories"));
  EXPECT_THAT(told.text, Not(HasSubstr("\n")));
}

TEST_P(KernelBlockIoTest, a_file_instead_of_a_directory_is_told) {
  std::ofstream(root() + "/file") << "x";
  const Refusal at_root = prepare(root() + "/file");
  EXPECT_EQ(at_root.code, ErrorCode::io);
  EXPECT_THAT(at_root.text, HasSubstr("is not a directory"));
  const Refusal below = prepare(root(), "/file/rank-0");
  EXPECT_EQ(below.code, ErrorCode::io);
  EXPECT_THAT(below.text, HasSubstr(root() + "/file is not a directory"));
}

TEST_P(KernelBlockIoTest, a_symbolic_link_is_followed_to_the_root_and_not_below) {
  std::filesystem::create_directory(root() + "/real");
  std::filesystem::create_directory_symlink("real", root() + "/link");
  EXPECT_EQ(prepare(root() + "/link").text, "no error");
  const Refusal below = prepare(root(), "/link/rank-0");
  EXPECT_EQ(below.code, ErrorCode::io);
  EXPECT_THAT(below.text, HasSubstr(root() + "/link is a symbolic link"));
  io_->remove_directory(root(), root() + "/link/run/rank-0");
  EXPECT_TRUE(std::filesystem::exists(root() + "/real/run/rank-0")) << "followed a link to remove";
}

TEST_P(KernelBlockIoTest, a_data_file_that_is_no_file_of_ours_is_refused) {
  std::ofstream(root() + "/target") << "precious";
  std::filesystem::create_symlink("target", root() + "/link");
  EXPECT_THAT(open(root() + "/link", 1_MiB).text, HasSubstr("is a symbolic link"));
  EXPECT_EQ(std::filesystem::file_size(root() + "/target"), 8U);
  ASSERT_EQ(::mkfifo((root() + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(open(root() + "/fifo", 1_MiB).text, HasSubstr("not a regular file"));
  EXPECT_THAT(open(root(), 1_MiB).text, HasSubstr("a directory stands"));
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown((root() + "/target").c_str(), 12345, 12345), 0);
  EXPECT_THAT(open(root() + "/target", 1_MiB).text, HasSubstr("belongs to user 12345"));
  EXPECT_EQ(std::filesystem::file_size(root() + "/target"), 8U);
}

// Runs as nobody when started by root, whom permissions do not stop.
class Unprivileged {
 public:
  Unprivileged() : euid_(::geteuid()) { EXPECT_TRUE(euid_ != 0 || ::seteuid(65534) == 0); }
  ~Unprivileged() { EXPECT_EQ(::seteuid(euid_), 0); }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  uid_t euid_;
};

TEST_P(KernelBlockIoTest, a_directory_without_permission_is_told) {
  ASSERT_EQ(::chmod(root().c_str(), 0555), 0);
  std::filesystem::create_directory(root() + "/closed");
  const Unprivileged nobody;
  const Refusal itself = prepare(root(), "");
  EXPECT_EQ(itself.code, ErrorCode::io);
  EXPECT_THAT(itself.text, HasSubstr(root() + " is not writable for this user"));
  EXPECT_THAT(prepare(root()).text, HasSubstr("not writable for this user"));
}

TEST_P(KernelBlockIoTest, a_read_only_file_system_is_told) {
  std::string why_not;
  const auto system = LoopFileSystem::mount({.read_only = true}, why_not);
  if (system == nullptr) GTEST_SKIP() << why_not;
  for (const char* below : {"", "/run"}) {
    const Refusal told = prepare(system->path(), below);
    EXPECT_EQ(told.code, ErrorCode::io);
    EXPECT_THAT(told.text, HasSubstr("is on a read-only file system"));
  }
  EXPECT_THAT(open(system->path() + "/data", 1_MiB).text,
              HasSubstr("the file system is read-only"));
}

TEST_P(KernelBlockIoTest, tmpfs_is_refused_unless_allowed_and_has_no_direct_io) {
  std::error_code missing;
  if (!std::filesystem::is_directory("/dev/shm", missing)) GTEST_SKIP() << "no /dev/shm";
  const ScratchDirectory memory("/dev/shm");
  const Refusal told = prepare(memory.path());
  EXPECT_EQ(told.code, ErrorCode::not_supported);
  EXPECT_THAT(told.text,
              HasSubstr("rests in RAM; choose a directory on a disk or set nvme.allow_tmpfs"));
  EXPECT_FALSE(std::filesystem::exists(memory.path() + "/run"));
  EXPECT_EQ(prepare(memory.path(), "/run/rank-0", true).text, "no error");

  std::vector<std::string> lines;
  const auto io = make(true, [&](LogLevel level, std::string_view line) {
    EXPECT_EQ(level, LogLevel::warning);
    lines.emplace_back(line);
  });
  const std::string directory = memory.path() + "/run/rank-0";
  const FileId first = io->open({directory + "/a", 64_KiB});
  const FileId second = io->open({directory + "/b", 64_KiB});
  EXPECT_FALSE(io->direct(first));
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr(directory), HasSubstr("page cache"))));
  io->close(first, true);
  io->close(second, true);
}

TEST_P(KernelBlockIoTest, a_full_disk_shows_at_open_with_the_bytes_missing) {
  std::string why_not;
  const auto system = LoopFileSystem::mount({.size = 16_MiB}, why_not);
  if (system == nullptr) GTEST_SKIP() << why_not;
  const std::string path = system->path() + "/data";
  const Refusal told = open(path, 64_MiB);
  EXPECT_EQ(told.code, ErrorCode::no_space);
  EXPECT_THAT(told.text, HasSubstr("67108864 bytes needed"));
  ASSERT_TRUE(told.context.size.has_value());
  EXPECT_GT(*told.context.size, 48_MiB);
  EXPECT_LT(*told.context.size, 64_MiB);
  EXPECT_FALSE(std::filesystem::exists(path));

  IoRunner runner(*io_);
  const FileId small = io_->open({path, 2_MiB});
  IoBuffer content(64_KiB);
  content.fill(5);
  EXPECT_EQ(runner.write(small, 0, content.bytes()), 65536);
  io_->close(small, false);
  EXPECT_EQ(open(path, 64_MiB).code, ErrorCode::no_space);
  const FileId again = io_->open({path, 2_MiB});  // an older file outlives a failed open()
  EXPECT_EQ(runner.read(again, 0, content.bytes()), 65536);
  EXPECT_TRUE(content.holds(5));
  io_->close(again, true);
}

// Whatever keeps a file open a little longer, its blocks are free when close() has returned.
TEST_P(KernelBlockIoTest, a_deleted_file_gives_its_blocks_back_at_once) {
  std::string why_not;
  const auto system = LoopFileSystem::mount({.size = 56_MiB}, why_not);
  if (system == nullptr) GTEST_SKIP() << why_not;
  for (int round = 0; round < 10; ++round) {
    const auto io = make(true);
    const FileId file = io->open({system->path() + "/data", 36_MiB});
    std::thread([&] {
      IoRunner runner(*io);
      IoBuffer buffer(64_KiB);
      EXPECT_EQ(runner.write(file, 0, buffer.bytes()), 65536);
    }).join();
    io->close(file, true);
  }
}

TEST_P(KernelBlockIoTest, the_holder_of_a_file_is_named) {
  const auto other = make(true);
  const FileId file = other->open({root() + "/data", 1_MiB});
  const Refusal told = open(root() + "/data", 1_MiB);
  EXPECT_EQ(told.code, ErrorCode::in_use);
  EXPECT_THAT(told.text, testing::AnyOf(HasSubstr("this process holds the data file"),
                                        HasSubstr("another process holds the data file")));
  other->close(file, true);
}

TEST_P(KernelBlockIoTest, reading_a_file_that_was_truncated_is_short) {
  IoRunner runner(*io_);
  const FileId file = io_->open({root() + "/data", 64_KiB});
  ASSERT_EQ(::truncate((root() + "/data").c_str(), 40000), 0);
  IoBuffer in(64_KiB);
  EXPECT_EQ(runner.read(file, 0, in.bytes()), 40000);
  io_->close(file, true);
}

// In a child: beyond RLIMIT_FSIZE a write and an open() are errors and no signal ends the process.
void write_beyond_the_file_size_limit(BlockIo* io, const std::string& directory) {
  const SignalsBlocked as_on_the_engine_thread;
  IoRunner runner(*io);
  const FileId file = io->open({directory + "/data", 1_MiB});
  const rlimit limit{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(2);
  IoBuffer buffer(64_KiB);
  if (runner.write(file, 0, buffer.bytes()) != 65536) std::_Exit(3);
  if (runner.write(file, 32768, buffer.bytes()) != -EFBIG) std::_Exit(4);
  if (runner.write(file, 524288, buffer.bytes()) != -EFBIG) std::_Exit(5);
  const Refusal told = refusal([&] { io->open({directory + "/other", 1_MiB}); });
  if (told.code != ErrorCode::no_space) std::_Exit(6);
  if (told.text.find("ulimit -f") == std::string::npos) std::_Exit(7);
  if (std::filesystem::exists(directory + "/other")) std::_Exit(8);
  io->close(file, true);
  std::_Exit(0);
}

TEST_P(KernelBlockIoTest, the_file_size_limit_is_an_error_and_not_a_signal) {
  io_.reset();  // no threads across fork
  for (const bool direct : {true, false}) {
    EXPECT_EXIT(write_beyond_the_file_size_limit(make(direct).get(), root()),
                testing::ExitedWithCode(0), "");
  }
}

// A child that holds a file with writes in flight.
class Holder {
 public:
  using Make = std::function<std::unique_ptr<BlockIo>()>;
  Holder(const std::string& path, const Make& make) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) hold(path, make, ends[1]);
    ::close(ends[1]);
    char ready = 0;
    EXPECT_EQ(::read(ends[0], &ready, 1), 1) << "the child did not open its file";
    ::close(ends[0]);
  }
  ~Holder() { kill(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
    pid_ = 0;
  }

 private:
  [[noreturn]] static void hold(const std::string& path, const Make& make, int ready) {
    const auto io = make();
    const FileId file = io->open({path, 32_MiB});
    std::vector<IoBuffer> buffers;
    std::vector<IoRequest> writes;
    for (std::uint64_t i = 0; i < 8; ++i) {
      buffers.emplace_back(4_MiB);
      writes.push_back({.op = IoOp::write,
                        .file = file,
                        .offset_bytes = i << 22,
                        .data = buffers.back().data(),
                        .size = 4_MiB});
    }
    io->submit(writes);
    if (::write(ready, "1", 1) != 1) std::_Exit(1);
    for (;;) ::pause();
  }

  pid_t pid_ = 0;
};

TEST_P(KernelBlockIoTest, a_killed_session_leaves_files_that_open_again) {
  const std::string path = root() + "/data";
  io_.reset();  // no threads across fork
  Holder holder(path, [] { return make(true); });
  io_ = make(true);
  const Refusal told = open(path, 32_MiB);
  EXPECT_EQ(told.code, ErrorCode::in_use);
  EXPECT_THAT(told.text, HasSubstr(fmt::format("process {} holds", holder.pid())));
  holder.kill();

  IoRunner runner(*io_);
  const FileId file = io_->open({path, 32_MiB});
  IoBuffer in(4_MiB);
  EXPECT_EQ(runner.read(file, 0, in.bytes()), 4 << 20);
  io_->close(file, true);
}

}  // namespace
}  // namespace strata::test
