#include "posix/posix_block_io.hpp"

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

#include "block_io_conformance.hpp"
#include "files/transfer.hpp"
#include "strata/error.hpp"
#include "support/loop_file_system.hpp"

namespace strata::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::unique_ptr<PosixBlockIo> make_posix(bool direct, std::uint32_t threads = 4) {
  return std::make_unique<PosixBlockIo>(
      PosixBlockIo::Options{.threads = threads, .direct = direct, .log = {}});
}

class PosixPlace final : public IoPlace {
 public:
  explicit PosixPlace(bool direct) : direct_(direct) {}
  std::unique_ptr<BlockIo> make() override { return make_posix(direct_); }
  std::unique_ptr<BlockIo> make_serial() const { return make_posix(direct_, 1); }
  std::string root() const override {
    return file_system_ ? file_system_->path() : scratch_.path();
  }
  bool put_on_loop_device(const LoopFileSystem::Options& options, std::string& why_not) {
    file_system_ = LoopFileSystem::mount(options, why_not);
    return file_system_ != nullptr;
  }

 private:
  bool direct_;
  ScratchDirectory scratch_;
  std::unique_ptr<LoopFileSystem> file_system_;
};

bool has_direct_io(const std::string& directory) {
  const std::string path = directory + "/probe";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());
  return fd >= 0;
}

std::unique_ptr<BlockIo> make_serial(IoPlace& place) {
  return dynamic_cast<PosixPlace&>(place).make_serial();
}

std::unique_ptr<IoPlace> direct_place() {
  auto place = std::make_unique<PosixPlace>(true);
  if (has_direct_io(place->root())) return place;
  [&] { GTEST_SKIP() << place->root() << " has no O_DIRECT"; }();
  return nullptr;
}

std::unique_ptr<IoPlace> place_on_4096_byte_sectors() {
  auto place = std::make_unique<PosixPlace>(true);
  std::string why_not;
  if (place->put_on_loop_device({.size = 32_MiB, .sector = 4_KiB}, why_not)) return place;
  [&] { GTEST_SKIP() << why_not; }();
  return nullptr;
}

const IoUnderTest kDirect{"direct", direct_place, make_serial};
const IoUnderTest kPageCache{"page_cache", [] { return std::make_unique<PosixPlace>(false); },
                             make_serial};
const IoUnderTest kLargeSectors{"sectors_4096", place_on_4096_byte_sectors, make_serial};

INSTANTIATE_TEST_SUITE_P(Posix, BlockIoConformance,
                         testing::Values(kDirect, kPageCache, kLargeSectors), io_name);
INSTANTIATE_TEST_SUITE_P(Posix, BlockIoConformanceDeathTest, testing::Values(kDirect, kPageCache),
                         io_name);

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

class PosixBlockIoTest : public testing::Test {
 protected:
  Refusal prepare(const std::string& root, const std::string& below = "/run/rank-0",
                  bool allow_tmpfs = false) {
    return refusal([&] { io_->prepare_directory(root, root + below, allow_tmpfs); });
  }
  Refusal open(const std::string& path, Bytes size) {
    return refusal([&] { io_->close(io_->open({path, size}), true); });
  }
  std::string root() const { return scratch_.path(); }

  ScratchDirectory scratch_;
  std::unique_ptr<PosixBlockIo> io_ = make_posix(true);
};

TEST_F(PosixBlockIoTest, direct_io_says_so_and_asks_for_the_sectors_of_the_device) {
  if (!has_direct_io(root())) GTEST_SKIP() << root() << " has no O_DIRECT";
  const FileId file = io_->open({root() + "/data", 1_MiB});
  EXPECT_TRUE(io_->direct(file));
  EXPECT_GE(io_->alignment(file).offset, 512_B);
  io_->close(file, true);
  const auto cached = make_posix(false);
  const FileId other = cached->open({root() + "/data", 1_MiB});
  EXPECT_FALSE(cached->direct(other));
  EXPECT_EQ(cached->alignment(other).offset, 1_B);
  EXPECT_EQ(cached->alignment(other).memory, 1_B);
  cached->close(other, true);
}

TEST_F(PosixBlockIoTest, sectors_of_4096_bytes_are_asked_for) {
  std::string why_not;
  const auto system = LoopFileSystem::mount({.sector = 4_KiB}, why_not);
  if (system == nullptr) GTEST_SKIP() << why_not;
  const FileId file = io_->open({system->path() + "/data", 1_MiB});
  EXPECT_TRUE(io_->direct(file));
  EXPECT_EQ(io_->alignment(file).offset, 4_KiB);
  io_->close(file, true);
}

TEST_F(PosixBlockIoTest, files_and_directories_are_private_and_preallocated) {
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

TEST_F(PosixBlockIoTest, a_missing_root_is_told_with_what_to_do) {
  const Refusal told = prepare(root() + "/missing");
  EXPECT_EQ(told.code, ErrorCode::io);
  EXPECT_THAT(told.text, HasSubstr("nvme directory " + root() +
                                   "/missing does not exist; create it or set nvme.directories"));
  EXPECT_THAT(told.text, Not(HasSubstr("\n")));
}

TEST_F(PosixBlockIoTest, a_file_instead_of_a_directory_is_told) {
  std::ofstream(root() + "/file") << "x";
  const Refusal at_root = prepare(root() + "/file");
  EXPECT_EQ(at_root.code, ErrorCode::io);
  EXPECT_THAT(at_root.text, HasSubstr("is not a directory"));
  const Refusal below = prepare(root(), "/file/rank-0");
  EXPECT_EQ(below.code, ErrorCode::io);
  EXPECT_THAT(below.text, HasSubstr(root() + "/file is not a directory"));
}

TEST_F(PosixBlockIoTest, a_symbolic_link_is_followed_to_the_root_and_not_below) {
  std::filesystem::create_directory(root() + "/real");
  std::filesystem::create_directory_symlink("real", root() + "/link");
  EXPECT_EQ(prepare(root() + "/link").text, "no error");
  const Refusal below = prepare(root(), "/link/rank-0");
  EXPECT_EQ(below.code, ErrorCode::io);
  EXPECT_THAT(below.text, HasSubstr(root() + "/link is a symbolic link"));
  io_->remove_directory(root(), root() + "/link/run/rank-0");
  EXPECT_TRUE(std::filesystem::exists(root() + "/real/run/rank-0")) << "followed a link to remove";
}

TEST_F(PosixBlockIoTest, a_data_file_that_is_no_file_of_ours_is_refused) {
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

TEST_F(PosixBlockIoTest, a_directory_without_permission_is_told) {
  ASSERT_EQ(::chmod(root().c_str(), 0555), 0);
  std::filesystem::create_directory(root() + "/closed");
  const Unprivileged nobody;
  const Refusal itself = prepare(root(), "");
  EXPECT_EQ(itself.code, ErrorCode::io);
  EXPECT_THAT(itself.text, HasSubstr(root() + " is not writable for this user"));
  EXPECT_THAT(prepare(root()).text, HasSubstr("not writable for this user"));
}

TEST_F(PosixBlockIoTest, a_read_only_file_system_is_told) {
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

TEST_F(PosixBlockIoTest, tmpfs_is_refused_unless_allowed_and_has_no_direct_io) {
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
  PosixBlockIo io({.threads = 2, .direct = true, .log = [&](LogLevel level, std::string_view line) {
                     EXPECT_EQ(level, LogLevel::warning);
                     lines.emplace_back(line);
                   }});
  const std::string directory = memory.path() + "/run/rank-0";
  const FileId first = io.open({directory + "/a", 64_KiB});
  const FileId second = io.open({directory + "/b", 64_KiB});
  EXPECT_FALSE(io.direct(first));
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr(directory), HasSubstr("page cache"))));
  io.close(first, true);
  io.close(second, true);
}

TEST_F(PosixBlockIoTest, a_full_disk_shows_at_open_with_the_bytes_missing) {
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

TEST_F(PosixBlockIoTest, the_holder_of_a_file_is_named) {
  const auto other = make_posix(true);
  const FileId file = other->open({root() + "/data", 1_MiB});
  const Refusal told = open(root() + "/data", 1_MiB);
  EXPECT_EQ(told.code, ErrorCode::in_use);
  EXPECT_THAT(told.text, testing::AnyOf(HasSubstr("this process holds the data file"),
                                        HasSubstr("another process holds the data file")));
  other->close(file, true);
}

TEST_F(PosixBlockIoTest, reading_a_file_that_was_truncated_is_short) {
  IoRunner runner(*io_);
  const FileId file = io_->open({root() + "/data", 64_KiB});
  ASSERT_EQ(::truncate((root() + "/data").c_str(), 40000), 0);
  IoBuffer in(64_KiB);
  EXPECT_EQ(runner.read(file, 0, in.bytes()), 40000);
  io_->close(file, true);
}

// In a child: beyond RLIMIT_FSIZE a write and an open() are errors and no signal ends the process.
void write_beyond_the_file_size_limit(const std::string& directory, bool direct) {
  const auto io = make_posix(direct);
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
  sigset_t pending;
  sigpending(&pending);
  std::_Exit(sigismember(&pending, SIGXFSZ) == 0 ? 0 : 9);
}

TEST_F(PosixBlockIoTest, the_file_size_limit_is_an_error_and_not_a_signal) {
  io_.reset();  // no threads across fork
  for (const bool direct : {true, false}) {
    EXPECT_EXIT(write_beyond_the_file_size_limit(root(), direct), testing::ExitedWithCode(0), "");
  }
}

// A child that holds a file with writes in flight.
class Holder {
 public:
  explicit Holder(const std::string& path) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) hold(path, ends[1]);
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
  [[noreturn]] static void hold(const std::string& path, int ready) {
    const auto io = make_posix(true);
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

TEST_F(PosixBlockIoTest, a_killed_session_leaves_files_that_open_again) {
  const std::string path = root() + "/data";
  io_.reset();  // no threads across fork
  Holder holder(path);
  io_ = make_posix(true);
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

// finish_transfer against a scripted kernel: each call answers the next number.
class Script {
 public:
  explicit Script(std::deque<std::int64_t> answers) : answers_(std::move(answers)) {}
  std::int64_t operator()(std::uint64_t done) {
    positions.push_back(done);
    if (answers_.empty()) {
      ADD_FAILURE() << "one call too many";
      return -EIO;
    }
    const std::int64_t answer = answers_.front();
    answers_.pop_front();
    return answer;
  }
  std::vector<std::uint64_t> positions;

 private:
  std::deque<std::int64_t> answers_;
};

struct Finished {
  std::int64_t result;
  std::vector<std::uint64_t> positions;
};

Finished finish(bool reading, std::uint64_t size, std::uint64_t block,
                std::deque<std::int64_t> answers) {
  Script script(std::move(answers));
  files::Transfer transfer(reading, Bytes{size}, Bytes{block});
  while (transfer.advance(script(transfer.done())) != files::Transfer::Next::finished) {
  }
  return {transfer.result(), script.positions};
}

TEST(Transfer, short_transfers_and_interruptions_are_finished) {
  for (const bool reading : {true, false}) {
    const Finished whole = finish(reading, 4096, 512, {4096});
    EXPECT_EQ(whole.result, 4096);
    const Finished parts = finish(reading, 4096, 512, {512, -EINTR, 1024, -EAGAIN, 2560});
    EXPECT_EQ(parts.result, 4096);
    EXPECT_THAT(parts.positions, ElementsAre(0, 512, 512, 1536, 1536));
    const Finished bytewise = finish(reading, 10, 1, {3, 6, 1});
    EXPECT_EQ(bytewise.result, 10);
    EXPECT_THAT(bytewise.positions, ElementsAre(0, 3, 9));
    EXPECT_EQ(finish(reading, 0, 512, {0}).result, 0);
  }
}

TEST(Transfer, an_error_is_the_result_whatever_moved_before) {
  EXPECT_EQ(finish(true, 4096, 512, {1024, -EIO}).result, -EIO);
  EXPECT_EQ(finish(false, 4096, 512, {1024, -ENOSPC}).result, -ENOSPC);
}

TEST(Transfer, only_a_read_ends_at_the_end_of_the_file) {
  EXPECT_EQ(finish(true, 4096, 512, {1024, 0}).result, 1024);
  EXPECT_EQ(finish(true, 4096, 512, {700}).result, 700);
  EXPECT_EQ(finish(false, 4096, 512, {1024, 0}).result, -EIO);
}

TEST(Transfer, a_write_that_stops_inside_a_block_repeats_the_block) {
  const Finished finished = finish(false, 4096, 512, {700, 3584});
  EXPECT_EQ(finished.result, 4096);
  EXPECT_THAT(finished.positions, ElementsAre(0, 512));
}

}  // namespace
}  // namespace strata::test
