#include "support/simulated_disk.hpp"

#include <poll.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "block_io_conformance.hpp"
#include "strata/error.hpp"

namespace strata::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Delivery = SimulatedDisk::Delivery;

class SimulatedPlace final : public IoPlace {
 public:
  explicit SimulatedPlace(SimulatedDisk::Options options) : options_(std::move(options)) {
    options_.store = std::make_shared<FileStore>(FileStore::Options{.keep_previous = true});
  }
  std::unique_ptr<BlockIo> make() override { return std::make_unique<SimulatedDisk>(options_); }
  std::string root() const override { return "/simulated"; }

 private:
  SimulatedDisk::Options options_;
};

IoUnderTest under_test(std::string label, const SimulatedDisk::Options& options) {
  return {.label = std::move(label),
          .make_place = [options] { return std::make_unique<SimulatedPlace>(options); }};
}

constexpr IoAlignment kBytewise{.memory = Bytes{1}, .offset = Bytes{1}};
constexpr IoAlignment k4096{.memory = Bytes{4096}, .offset = Bytes{4096}};

INSTANTIATE_TEST_SUITE_P(
    Simulated, BlockIoConformance,
    testing::Values(under_test("on_poll", {}),
                    under_test("background", {.delivery = Delivery::background}),
                    under_test("bytewise", {.alignment = kBytewise, .direct = false}),
                    under_test("sectors_4096", {.seed = 77, .alignment = k4096})),
    io_name);
INSTANTIATE_TEST_SUITE_P(Simulated, BlockIoConformanceDeathTest,
                         testing::Values(under_test("on_poll", {})), io_name);

// A file of eight blocks of 4096 bytes, block i holding IoBuffer::fill(i), on a quiet disk.
class SimulatedDiskTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kBlock = 4096;
  static constexpr std::uint64_t kBlocks = 8;

  SimulatedDiskTest() { start({}); }

  void start(const SimulatedDisk::Options& options) {
    runner_.reset();
    disk_ = std::make_unique<SimulatedDisk>(options);
    runner_ = std::make_unique<IoRunner>(*disk_);
    disk_->prepare_directory("/d", "/d/run", false);
    file_ = disk_->open({kPath, Bytes{kBlock * kBlocks}});
    for (std::uint64_t i = 0; i < kBlocks; ++i) ASSERT_EQ(write(i, i), 4096);
  }

  std::int64_t write(std::uint64_t block, std::uint64_t seed) {
    IoBuffer buffer(Bytes{kBlock});
    buffer.fill(seed);
    return runner_->write(file_, block * kBlock, buffer.bytes());
  }
  std::int64_t read(std::uint64_t block) {
    return runner_->read(file_, block * kBlock, seen_.bytes());
  }
  // The block on the disk, not through it.
  IoBuffer at_rest(std::uint64_t block) const {
    IoBuffer buffer(Bytes{kBlock});
    disk_->store()->find(kPath)->read(block * kBlock, buffer.bytes());
    return buffer;
  }
  static std::size_t differing_bits(IoBuffer& buffer, std::uint64_t seed) {
    IoBuffer expected(Bytes{kBlock});
    expected.fill(seed);
    std::size_t count = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const auto bits = static_cast<unsigned>(buffer.data()[i] ^ expected.data()[i]);
      count += static_cast<std::size_t>(std::popcount(bits));
    }
    return count;
  }
  // How many leading bytes are those of `fresh`; the rest must be those of `old`.
  static std::size_t fresh_prefix(IoBuffer& buffer, std::uint64_t fresh, std::uint64_t old) {
    IoBuffer a(Bytes{kBlock}), b(Bytes{kBlock});
    a.fill(fresh);
    b.fill(old);
    std::size_t bytes = 0;
    while (bytes < kBlock && std::memcmp(a.data() + bytes, buffer.data() + bytes, 512) == 0) {
      bytes += 512;
    }
    EXPECT_EQ(std::memcmp(b.data() + bytes, buffer.data() + bytes, kBlock - bytes), 0);
    return bytes;
  }

  static constexpr const char* kPath = "/d/run/data";
  std::unique_ptr<SimulatedDisk> disk_;
  std::unique_ptr<IoRunner> runner_;
  FileId file_;
  IoBuffer seen_{Bytes{kBlock}};
};

TEST_F(SimulatedDiskTest, io_error_surfaces_once_and_is_told) {
  disk_->fail(Fault::io_error);
  EXPECT_EQ(read(2), -EIO);
  EXPECT_EQ(read(2), 4096);
  EXPECT_TRUE(seen_.holds(2));
  EXPECT_THAT(disk_->injected(),
              ElementsAre(HasSubstr("io error: read #8 of /d/run/data at 8192+4096")));
  EXPECT_EQ(disk_->counters().reads, 1U) << "a failed read is not counted";
}

TEST_F(SimulatedDiskTest, a_failing_write_lands_in_part_at_most) {
  disk_->fail(Fault::io_error);
  EXPECT_EQ(write(3, 33), -EIO);
  IoBuffer found = at_rest(3);
  EXPECT_LT(fresh_prefix(found, 33, 3), kBlock);
}

TEST_F(SimulatedDiskTest, a_flush_can_fail) {
  disk_->fail(Fault::io_error);
  EXPECT_EQ(runner_->flush(file_), -EIO);
  EXPECT_EQ(runner_->flush(file_), 0);
}

TEST_F(SimulatedDiskTest, no_space_waits_for_a_write_and_changes_nothing) {
  disk_->fail(Fault::no_space);
  EXPECT_EQ(read(1), 4096);
  EXPECT_THAT(disk_->injected(), IsEmpty());
  EXPECT_EQ(write(1, 11), -ENOSPC);
  EXPECT_TRUE(at_rest(1).holds(1));
}

TEST_F(SimulatedDiskTest, short_transfers_say_how_much_moved) {
  disk_->fail(Fault::short_transfer);
  const std::int64_t written = write(1, 11);
  EXPECT_LT(written, 4096);
  IoBuffer found = at_rest(1);
  EXPECT_EQ(static_cast<std::int64_t>(fresh_prefix(found, 11, 1)), written);

  disk_->fail(Fault::short_transfer);
  const std::int64_t got = read(2);
  EXPECT_GE(got, 0);
  EXPECT_LT(got, 4096);
  EXPECT_THAT(disk_->injected(), SizeIs(2));
}

TEST_F(SimulatedDiskTest, a_torn_write_reports_success) {
  disk_->fail(Fault::torn_write);
  EXPECT_EQ(write(4, 44), 4096);
  IoBuffer found = at_rest(4);
  EXPECT_LT(fresh_prefix(found, 44, 4), kBlock);
}

TEST_F(SimulatedDiskTest, a_lost_write_reports_success) {
  disk_->fail(Fault::lost_write);
  EXPECT_EQ(write(4, 44), 4096);
  EXPECT_TRUE(at_rest(4).holds(4));
}

TEST_F(SimulatedDiskTest, a_misdirected_write_lands_elsewhere_in_the_file) {
  disk_->fail(Fault::misdirected_write);
  EXPECT_EQ(write(5, 55), 4096);
  IoBuffer expected(Bytes{kBlock}), all(Bytes{kBlock * kBlocks});
  expected.fill(55);
  disk_->store()->find(kPath)->read(0, all.bytes());
  const std::byte* const begin = all.data();
  const std::byte* const end = begin + kBlock * kBlocks;
  const std::byte* const found = std::search(begin, end, expected.data(), expected.data() + kBlock);
  ASSERT_NE(found, end);
  EXPECT_NE(found - begin, 5 * 4096);
}

TEST_F(SimulatedDiskTest, a_misdirected_read_brings_other_bytes_and_changes_nothing) {
  disk_->fail(Fault::misdirected_read);
  EXPECT_EQ(read(5), 4096);
  EXPECT_FALSE(seen_.holds(5));
  EXPECT_EQ(read(5), 4096);
  EXPECT_TRUE(seen_.holds(5));
}

TEST_F(SimulatedDiskTest, a_misdirected_write_needs_another_place) {
  const FileId small = disk_->open({"/d/run/small", 4_KiB});
  disk_->fail(Fault::misdirected_write);
  IoBuffer buffer(4_KiB);
  EXPECT_EQ(runner_->write(small, 0, buffer.bytes()), 4096);
  EXPECT_THAT(disk_->injected(), IsEmpty());
}

TEST_F(SimulatedDiskTest, a_bit_flip_on_read_is_gone_at_the_next_read) {
  disk_->fail(Fault::bit_flip_on_read);
  EXPECT_EQ(read(6), 4096);
  EXPECT_EQ(differing_bits(seen_, 6), 1U);
  EXPECT_EQ(read(6), 4096);
  EXPECT_TRUE(seen_.holds(6));
}

TEST_F(SimulatedDiskTest, a_bit_flip_at_rest_stays) {
  disk_->fail(Fault::bit_flip_at_rest);
  EXPECT_EQ(write(6, 66), 4096);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(read(6), 4096);
    EXPECT_EQ(differing_bits(seen_, 66), 1U);
  }
}

TEST_F(SimulatedDiskTest, a_stale_read_brings_the_version_before) {
  ASSERT_EQ(write(7, 77), 4096);
  disk_->fail(Fault::stale_read);
  EXPECT_EQ(read(7), 4096);
  EXPECT_TRUE(seen_.holds(7));
  EXPECT_EQ(read(7), 4096);
  EXPECT_TRUE(seen_.holds(77));
}

TEST_F(SimulatedDiskTest, a_slow_request_comes_after_many_polls) {
  start({.max_latency_ticks = 1, .slow_ticks = 500});
  disk_->fail(Fault::slow);
  const IoRequest request{
      .op = IoOp::read, .file = file_, .data = seen_.data(), .size = Bytes{kBlock}};
  disk_->submit({&request, 1});
  IoResult result[1];
  int polls = 1;
  while (disk_->poll(result) == 0) ++polls;
  EXPECT_EQ(polls, 501);
  EXPECT_EQ(result[0].result, 4096);
}

TEST_F(SimulatedDiskTest, every_kind_of_fault_is_told_under_its_name) {
  const auto faults = {Fault::io_error,
                       Fault::no_space,
                       Fault::short_transfer,
                       Fault::torn_write,
                       Fault::lost_write,
                       Fault::misdirected_write,
                       Fault::misdirected_read,
                       Fault::bit_flip_on_read,
                       Fault::bit_flip_at_rest,
                       Fault::stale_read,
                       Fault::slow};
  ASSERT_EQ(faults.size(), kFaultCount);
  for (const Fault fault : faults) {
    disk_->fail(fault);
    write(0, 1);
    read(0);
    ASSERT_THAT(disk_->injected(), testing::Not(IsEmpty()));
    EXPECT_THAT(disk_->injected().back(), testing::StartsWith(std::string(name_of(fault)) + ":"));
  }
  EXPECT_THAT(disk_->injected(), SizeIs(kFaultCount));
}

TEST_F(SimulatedDiskTest, the_kth_request_that_the_fault_can_befall_fails) {
  for (std::uint64_t k = 0; k < 5; ++k) {
    disk_->fail(Fault::no_space, k);
    for (std::uint64_t i = 0; i <= k; ++i) {
      EXPECT_EQ(read(0), 4096);
      EXPECT_EQ(write(1, 1), i == k ? -ENOSPC : 4096);
    }
  }
}

TEST_F(SimulatedDiskTest, a_failing_request_fails_alone) {
  disk_->fail(Fault::io_error, 3);
  std::vector<IoBuffer> buffers;
  std::vector<IoRequest> requests;
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    buffers.emplace_back(Bytes{kBlock});
    requests.push_back({.op = IoOp::read,
                        .file = file_,
                        .offset_bytes = i * kBlock,
                        .data = buffers.back().data(),
                        .size = Bytes{kBlock},
                        .tag = i});
  }
  for (const IoResult& result : runner_->run(requests)) {
    EXPECT_EQ(result.result, result.tag == 3 ? -EIO : 4096);
    EXPECT_TRUE(result.tag == 3 || buffers[result.tag].holds(result.tag));
  }
}

std::vector<std::uint64_t> order_of_completion(std::uint64_t seed) {
  SimulatedDisk disk({.seed = seed});
  IoRunner runner(disk);
  disk.prepare_directory("/d", "/d", false);
  const FileId file = disk.open({"/d/data", 4_KiB});
  std::vector<IoRequest> requests;
  for (std::uint64_t i = 0; i < 20; ++i) {
    requests.push_back({.op = IoOp::flush, .file = file, .tag = i});
  }
  std::vector<std::uint64_t> order;
  for (const IoResult& result : runner.run(requests)) order.push_back(result.tag);
  return order;
}

TEST(SimulatedDisk, the_seed_decides_the_order) {
  EXPECT_EQ(order_of_completion(1), order_of_completion(1));
  EXPECT_NE(order_of_completion(1), order_of_completion(2));
  EXPECT_FALSE(std::ranges::is_sorted(order_of_completion(1)));
}

TEST_F(SimulatedDiskTest, chances_are_seeded_and_about_as_frequent_as_asked) {
  std::vector<std::string> first;
  for (int run = 0; run < 2; ++run) {
    start({.seed = 5});
    disk_->set_probability(Fault::io_error, 0.25);
    disk_->set_probability(Fault::bit_flip_on_read, 0.25);
    for (std::uint64_t i = 0; i < 400; ++i) read(i % kBlocks);
    const std::vector<std::string> injected = disk_->injected();
    // 400 draws of 1 - 0.75^2 = 0.4375: 175 expected, standard deviation 10.
    EXPECT_GT(injected.size(), 125U);
    EXPECT_LT(injected.size(), 225U);
    EXPECT_TRUE(run == 0 || injected == first);
    first = injected;
  }
}

TEST_F(SimulatedDiskTest, manual_delivery_completes_what_it_is_told) {
  auto store = std::make_shared<FileStore>(FileStore::Options{.keep_previous = true});
  SimulatedDisk disk({.delivery = Delivery::manual, .store = store});
  const auto is_readable = [&] {
    pollfd readable{.fd = disk.descriptor(), .events = POLLIN, .revents = 0};
    return ::poll(&readable, 1, 0) == 1;
  };
  disk.prepare_directory("/d", "/d", false);
  const FileId file = disk.open({"/d/data", 4_KiB});
  const std::vector<IoRequest> requests(3, {.op = IoOp::flush, .file = file});
  disk.submit(requests);
  IoResult results[4];
  EXPECT_EQ(disk.poll(results), 0U);
  EXPECT_FALSE(is_readable());
  EXPECT_EQ(disk.deliver(1), 1U);
  EXPECT_TRUE(is_readable());
  EXPECT_EQ(disk.poll(results), 1U);
  EXPECT_FALSE(is_readable());
  EXPECT_EQ(disk.deliver(10), 2U);
  EXPECT_EQ(disk.in_flight(), 2U);
  EXPECT_EQ(disk.poll(results), 2U);
  EXPECT_EQ(disk.deliver(1), 0U);
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no Error";
  return ErrorCode::invalid_argument;
}

TEST_F(SimulatedDiskTest, a_full_disk_shows_at_open_with_the_bytes_missing) {
  auto store = std::make_shared<FileStore>(FileStore::Options{.capacity = 64_KiB});
  SimulatedDisk disk({.store = store});
  disk.prepare_directory("/d", "/d", false);
  disk.open({"/d/first", 48_KiB});
  try {
    disk.open({"/d/second", 32_KiB});
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_space);
    EXPECT_EQ(error.context().size, 16_KiB);
  }
  EXPECT_THAT(store->paths(), ElementsAre("/d/first"));
  disk.open({"/d/second", 16_KiB});
}

TEST_F(SimulatedDiskTest, opens_and_directories_fail_when_planned) {
  disk_->fail_open(ENOSPC, 1);
  disk_->fail_prepare_directory(EROFS);
  disk_->open({"/d/run/a", 4_KiB});
  EXPECT_EQ(code_of([&] { disk_->open({"/d/run/b", 4_KiB}); }), ErrorCode::no_space);
  EXPECT_EQ(code_of([&] { disk_->prepare_directory("/d", "/d/x", false); }), ErrorCode::io);
  disk_->open({"/d/run/b", 4_KiB});
  EXPECT_THAT(disk_->injected(), SizeIs(2));
  EXPECT_THAT(disk_->store()->directories(), ElementsAre("/d", "/d/run"));
}

TEST_F(SimulatedDiskTest, a_kill_leaves_each_write_in_flight_whole_partial_or_absent) {
  std::array<int, 3> seen{};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    start({.seed = seed, .delivery = Delivery::on_poll});
    IoBuffer buffer(Bytes{kBlock});
    buffer.fill(99);
    const IoRequest request{.op = IoOp::write,
                            .file = file_,
                            .offset_bytes = kBlock,
                            .data = buffer.data(),
                            .size = Bytes{kBlock}};
    disk_->submit({&request, 1});
    const auto killed = disk_->store_if_killed_now();
    IoBuffer found(Bytes{kBlock});
    killed->find(kPath)->read(kBlock, found.bytes());
    const std::size_t landed = fresh_prefix(found, 99, 1);
    ++seen[landed == 0 ? 0 : landed == kBlock ? 2 : 1];
    EXPECT_TRUE(at_rest(1).holds(1)) << "the running disk is not touched";

    SimulatedDisk next({.store = killed});
    next.open({kPath, Bytes{kBlock * kBlocks}});  // nobody holds it
    runner_->wait(1);
  }
  EXPECT_THAT(seen, testing::Each(testing::Gt(0)));
}

using SimulatedDiskDeathTest = SimulatedDiskTest;

TEST_F(SimulatedDiskDeathTest, memory_in_two_requests_at_once_is_an_assertion) {
  const IoRequest first{
      .op = IoOp::read, .file = file_, .data = seen_.data(), .size = Bytes{kBlock}};
  IoRequest second = first;
  second.data += 512;
  second.size = Bytes{512};
  disk_->submit({&first, 1});
  EXPECT_DEATH(disk_->submit({&second, 1}), "submitted again while in flight");
  disk_->deliver(1);
  EXPECT_DEATH(disk_->submit({&second, 1}), "before its result was polled");
  EXPECT_EQ(runner_->wait(1).size(), 1U);
  EXPECT_EQ(runner_->run(second), 512);
}

TEST_F(SimulatedDiskDeathTest, close_with_a_request_in_flight_is_an_assertion) {
  const IoRequest flush{.op = IoOp::flush, .file = file_};
  disk_->submit({&flush, 1});
  EXPECT_DEATH(disk_->close(file_, false), "in flight");
  disk_->deliver(1);
  EXPECT_DEATH(disk_->close(file_, false), "was not polled");
  runner_->wait(1);
  disk_->close(file_, true);
  EXPECT_THAT(disk_->store()->paths(), IsEmpty());
}

}  // namespace
}  // namespace strata::test
