#include "uring/uring_block_io.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "block_io_conformance.hpp"
#include "strata/error.hpp"
#include "support/loop_file_system.hpp"
#include "uring/ring.hpp"

namespace strata::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class UringBlockIoTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      io_ = make();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<UringBlockIo> make(files::QueueDepth depth = {4, 4}) {
    return std::make_unique<UringBlockIo>(UringBlockIo::Options{
        .depth = depth, .direct = true, .log = [this](LogLevel, std::string_view line) {
          lines_.emplace_back(line);
        }});
  }
  FileId open() { return io_->open({scratch_.path() + "/data", 16_MiB}); }

  ScratchDirectory scratch_;
  std::vector<std::string> lines_;
  std::unique_ptr<UringBlockIo> io_;
};

TEST_F(UringBlockIoTest, memory_is_registered_and_other_memory_works_as_well) {
  IoRunner runner(*io_);
  IoBuffer named(1_MiB);
  IoBuffer other(1_MiB);
  io_->use_memory(named.bytes());
  const FileId file = open();
  named.fill(1);
  other.fill(2);
  EXPECT_EQ(runner.write(file, 0, named.bytes()), 1 << 20);
  EXPECT_TRUE(io_->uses_registered_memory());
  EXPECT_EQ(runner.write(file, 1 << 20, other.bytes()), 1 << 20);
  // Half inside the registered memory.
  EXPECT_EQ(runner.read(file, 1 << 20, named.bytes()), 1 << 20);
  EXPECT_TRUE(named.holds(2));
  EXPECT_EQ(runner.read(file, 0, other.bytes()), 1 << 20);
  EXPECT_TRUE(other.holds(1));
  io_->use_memory({});
  EXPECT_EQ(runner.read(file, 1 << 20, other.bytes()), 1 << 20);
  EXPECT_FALSE(io_->uses_registered_memory());
  EXPECT_TRUE(other.holds(2));
  EXPECT_THAT(lines_, IsEmpty());
  io_->close(file, true);
}

// More than one registered buffer can hold, mapped and never touched but for the ends.
TEST_F(UringBlockIoTest, memory_beyond_1_gib_is_registered_in_pieces) {
  constexpr std::size_t kSize = (std::size_t{1} << 30) + (4 << 20);
  void* address = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(address, MAP_FAILED);
  if (::sysconf(_SC_AVPHYS_PAGES) < (3L << 30) / 4096) GTEST_SKIP() << "less than 3 GiB are free";
  const std::span memory(static_cast<std::byte*>(address), kSize);
  ::madvise(address, kSize, MADV_HUGEPAGE);
  io_->use_memory(memory);
  const FileId file = open();
  IoRunner runner(*io_);
  memory.front() = std::byte{7};
  EXPECT_EQ(runner.write(file, 0, memory.first(4096)), 4096);
  EXPECT_TRUE(io_->uses_registered_memory());
  // The last piece, and a request across the border of two.
  EXPECT_EQ(runner.read(file, 0, memory.last(4096)), 4096);
  EXPECT_EQ(memory[kSize - 4096], std::byte{7});
  EXPECT_EQ(runner.read(file, 0, memory.subspan((1U << 30) - 4096, 8192)), 8192);
  EXPECT_EQ(memory[(1U << 30) - 4096], std::byte{7});
  io_->close(file, true);
  io_.reset();
  ::munmap(address, kSize);
}

// In a child without privileges: root may lock any amount.
void write_without_locked_memory(const std::string& directory, UringBlockIo& io,
                                 const std::vector<std::string>& lines) {
  const rlimit limit{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) std::_Exit(2);
  if (::geteuid() == 0 && (::chmod(directory.c_str(), 0777) != 0 || ::setuid(65534) != 0)) {
    std::_Exit(3);
  }
  IoBuffer buffer(1_MiB);
  buffer.fill(1);
  io.use_memory(buffer.bytes());
  IoRunner runner(io);
  const FileId file = io.open({directory + "/data", 1_MiB});
  for (int round = 0; round < 2; ++round) {
    if (runner.write(file, 0, buffer.bytes()) != 1 << 20) std::_Exit(4);
    io.use_memory(buffer.bytes());
  }
  if (io.uses_registered_memory()) std::_Exit(5);
  if (lines.size() != 1) std::_Exit(6);
  if (lines[0].find("1 MiB of staging memory cannot be registered") != 0) std::_Exit(7);
  if (lines[0].find("ulimit -l") == std::string::npos) std::_Exit(8);
  std::_Exit(0);
}

TEST_F(UringBlockIoTest, without_locked_memory_it_works_unregistered_and_says_so_once) {
  EXPECT_EXIT(write_without_locked_memory(scratch_.path(), *io_, lines_),
              testing::ExitedWithCode(0), "");
}

// In a child: more descriptors than a table of registered files may have, and none left for a ring.
void write_without_descriptors(const std::string& directory, UringBlockIo& io) {
  const FileId file = io.open({directory + "/data", 1_MiB});
  IoRunner runner(io);
  IoBuffer buffer(64_KiB);
  rlimit limit{.rlim_cur = 3, .rlim_max = 1024};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::_Exit(2);
  if (runner.write(file, 0, buffer.bytes()) != -EMFILE) std::_Exit(3);
  limit.rlim_cur = 1024;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::_Exit(4);
  if (runner.write(file, 0, buffer.bytes()) != 65536) std::_Exit(5);
  std::_Exit(0);
}

TEST_F(UringBlockIoTest, no_descriptor_for_a_ring_fails_requests_and_no_more) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers open pipes to look at memory, and find none left";
#endif
  EXPECT_EXIT(write_without_descriptors(scratch_.path(), *io_), testing::ExitedWithCode(0), "");
}

TEST_F(UringBlockIoTest, another_thread_may_go_on_when_nothing_is_in_flight) {
  IoBuffer buffer(64_KiB);
  io_->use_memory(buffer.bytes());
  const FileId file = open();
  buffer.fill(3);
  std::thread([&] {
    IoRunner runner(*io_);
    EXPECT_EQ(runner.write(file, 0, buffer.bytes()), 65536);
  }).join();
  IoRunner runner(*io_);
  buffer.fill(4);
  EXPECT_EQ(runner.read(file, 0, buffer.bytes()), 65536);
  EXPECT_TRUE(buffer.holds(3));
  std::thread([&] { io_->close(file, true); }).join();
  EXPECT_FALSE(io_->open({scratch_.path() + "/data", 1_MiB}).value == file.value)
      << "the lock outlived the file";
}

TEST_F(UringBlockIoTest, files_open_and_close_beside_requests_in_flight) {
  const FileId first = open();
  IoBuffer buffer(4_MiB);
  buffer.fill(1);
  const IoRequest write{.op = IoOp::write, .file = first, .data = buffer.data(), .size = 4_MiB};
  io_->submit(std::span(&write, 1));
  const FileId second = io_->open({scratch_.path() + "/second", 1_MiB});
  IoBuffer small(64_KiB);
  small.fill(2);
  const IoRequest other{
      .op = IoOp::write, .file = second, .data = small.data(), .size = 64_KiB, .tag = 1};
  io_->submit(std::span(&other, 1));
  IoRunner runner(*io_);
  std::int64_t moved = 0;
  for (const IoResult& result : runner.wait(2)) moved += result.result;
  EXPECT_EQ(moved, (4 << 20) + (64 << 10));
  io_->close(second, true);
  EXPECT_EQ(runner.read(first, 0, buffer.bytes()), 4 << 20);
  EXPECT_TRUE(buffer.holds(1));
  io_->close(first, true);
}

// As many requests as there are, through a queue that is much shorter.
TEST_F(UringBlockIoTest, many_requests_pass_a_short_queue) {
  io_ = make({3, 2});
  const FileId file = open();
  constexpr std::uint64_t kCount = 200;
  std::vector<IoBuffer> buffers;
  std::vector<IoRequest> requests;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    buffers.emplace_back(4_KiB);
    buffers.back().fill(i);
    requests.push_back({.op = IoOp::write,
                        .file = file,
                        .offset_bytes = i * 4096,
                        .data = buffers.back().data(),
                        .size = 4_KiB,
                        .tag = i});
  }
  IoRunner runner(*io_);
  for (const IoResult& result : runner.run(requests)) EXPECT_EQ(result.result, 4096);
  for (IoRequest& request : requests) request.op = IoOp::read;
  for (IoBuffer& buffer : buffers) buffer.fill(kCount);
  for (const IoResult& result : runner.run(requests)) EXPECT_EQ(result.result, 4096);
  for (std::uint64_t i = 0; i < kCount; ++i) EXPECT_TRUE(buffers[i].holds(i));
  EXPECT_EQ(io_->counters().reads, kCount);
  EXPECT_EQ(io_->counters().writes, kCount);
  io_->close(file, true);
}

TEST(UringErrors, say_what_to_do) {
  EXPECT_THAT(uring::setup_error(EPERM).what(), HasSubstr("kernel.io_uring_disabled"));
  EXPECT_THAT(uring::setup_error(EPERM).what(), HasSubstr("io_uring_setup"));
  EXPECT_THAT(uring::setup_error(ENOSYS).what(), HasSubstr("no io_uring"));
  EXPECT_EQ(uring::setup_error(EPERM).code(), ErrorCode::not_supported);
}

}  // namespace
}  // namespace strata::test
