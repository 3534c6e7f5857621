// Tiles on a simulated disk: what is verified where, what is tried again, what overtakes what.
#include "engine/tile_io.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/slab_pool.hpp"
#include "engine/worker_pool.hpp"
#include "strata/error.hpp"
#include "support/simulated_disk.hpp"
#include "support/test_machine.hpp"

namespace strata::test {
namespace {

using testing::HasSubstr;

constexpr Bytes kTile{10'000};
constexpr std::size_t kTiles = 4;

class TileIoTest : public testing::Test {
 protected:
  using Delivery = SimulatedDisk::Delivery;

  void TearDown() override {
    thread_.reset();
    store_->close();
  }

  void start(TileIoOptions options = {}, Delivery delivery = Delivery::background,
             std::int64_t timeout_ns = 60'000'000'000) {
    disk_ = std::make_unique<SimulatedDisk>(SimulatedDisk::Options{.delivery = delivery});
    store_ = std::make_unique<ExtentStore>(
        *disk_, ExtentStoreOptions{.directories = {"/d"}, .weights = {}, .run = "run", .rank = {}});
    for (std::size_t i = 0; i < kTiles; ++i) extents_.push_back(store_->add(kTile, 0));
    store_->open();
    executor_ = std::make_unique<Executor>(*device_, *disk_, workers_, timeout_ns);
    options.name = [](ExtentId) { return TileName{"moment1", "block.7", Rank{3}}; };
    options.log = [this](LogLevel, std::string_view line) { lines_.emplace_back(line); };
    tiles_ = std::make_unique<TileIo>(*executor_, *store_, options);
    thread_.emplace(*executor_);
  }

  struct Buffer {
    Buffer() : data(static_cast<std::byte*>(std::aligned_alloc(4096, 12288))) {
      std::fill_n(data, 12288, std::byte{0x5A});
    }
    ~Buffer() { std::free(data); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    void fill(int value) { std::fill_n(data, kTile.value, static_cast<std::byte>(value)); }
    std::byte* data;
  };

  TileBuffer tile(std::size_t i, const Buffer& buffer) const { return {extents_[i], buffer.data}; }
  void write(std::size_t i, const Buffer& buffer) {
    executor_->run_blocking(tiles_->write(tile(i, buffer)));
  }
  void read(std::size_t i, const Buffer& buffer) {
    executor_->run_blocking(tiles_->read(tile(i, buffer), IoPriority::stage));
  }
  template <class Call>
  Error failure(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::closed, "no error");
  }

  TestMachine machine_{1};
  std::unique_ptr<Device> device_ = machine_.device(Rank{0}, 1_MiB);
  WorkerPool workers_{1};
  std::unique_ptr<SimulatedDisk> disk_;
  std::unique_ptr<ExtentStore> store_;
  std::vector<ExtentId> extents_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<TileIo> tiles_;
  std::vector<std::string> lines_;
  std::optional<EngineThread> thread_;  // last: ends before what it drives
};

TEST_F(TileIoTest, WhatStandsBehindATileIsWrittenAsZeros) {
  start();
  Buffer buffer;
  buffer.fill(1);
  write(0, buffer);
  const auto bytes = disk_->store()->find("/d/run/rank-0/states.bin")->bytes();
  EXPECT_EQ(bytes[kTile.value - 1], std::byte{1});
  for (std::size_t i = kTile.value; i < 12288; ++i) ASSERT_EQ(bytes[i], std::byte{0}) << i;
  // And it is covered: nothing of a tile's place on the disk may change unnoticed.
  bytes[12287] ^= std::byte{1};
  EXPECT_EQ(failure([&] { read(0, buffer); }).code(), ErrorCode::corrupt);
}

TEST_F(TileIoTest, AnErrorNamesPathOffsetUnitKindAndRank) {
  start({.retry_ns = 0});
  Buffer buffer;
  write(1, buffer);
  disk_->fail(Fault::io_error);
  const Error error = failure([&] { read(1, buffer); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_STREQ(error.what(),
               "reading moment1 from the nvme tier failed: Input/output error (path "
               "/d/run/rank-0/states.bin, offset 12288, 12288 bytes, unit block.7, rank 3)");
  EXPECT_EQ(error.context().errnum, EIO);
  read(1, buffer);  // only that request failed
}

TEST_F(TileIoTest, AFailedWriteLeavesTheOldVersion) {
  start({.retry_ns = 0});
  Buffer buffer;
  buffer.fill(1);
  write(0, buffer);
  buffer.fill(2);
  disk_->fail(Fault::no_space);
  EXPECT_EQ(failure([&] { write(0, buffer); }).code(), ErrorCode::no_space);
  read(0, buffer);
  EXPECT_EQ(buffer.data[0], std::byte{1});
  buffer.fill(3);
  write(0, buffer);
  read(0, buffer);
  EXPECT_EQ(buffer.data[0], std::byte{3});
}

TEST_F(TileIoTest, ATransferIsTriedAgainAndToldOnce) {
  start({.retry_ns = 1'000'000'000});
  Buffer buffer;
  buffer.fill(1);
  for (std::uint64_t k = 0; k < 4; ++k) disk_->fail(Fault::io_error, 0);
  write(0, buffer);
  EXPECT_EQ(disk_->injected().size(), 4U);
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_THAT(lines_[0], HasSubstr("writing moment1 to the nvme tier failed: Input/output error"));
  EXPECT_THAT(lines_[0], HasSubstr("; trying again"));
  read(0, buffer);
  EXPECT_EQ(buffer.data[0], std::byte{1});
}

TEST_F(TileIoTest, AMismatchIsReadOnceMore) {
  start();
  Buffer buffer;
  buffer.fill(1);
  write(0, buffer);
  disk_->fail(Fault::bit_flip_on_read);
  const std::uint64_t before = disk_->counters().reads;
  read(0, buffer);
  EXPECT_EQ(disk_->counters().reads, before + 2);
  EXPECT_EQ(buffer.data[0], std::byte{1});
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_THAT(lines_[0], HasSubstr("moment1 of unit block.7 at offset 0 was wrong when read"));
  for (int i = 0; i < 2; ++i) disk_->fail(Fault::bit_flip_on_read);
  EXPECT_EQ(failure([&] { read(0, buffer); }).code(), ErrorCode::corrupt);
  EXPECT_EQ(disk_->counters().reads, before + 4);
}

TEST_F(TileIoTest, TilesThatSwappedPlacesAreFound) {
  start();
  Buffer buffer;
  for (const std::size_t i : {0U, 1U}) {
    buffer.fill(7);  // the same content
    write(i, buffer);
  }
  const auto bytes = disk_->store()->find("/d/run/rank-0/states.bin")->bytes();
  std::swap_ranges(bytes.begin(), bytes.begin() + 12288, bytes.begin() + 12288);
  // Equal bytes are right wherever they came from; different ones are not.
  read(0, buffer);
  buffer.fill(8);
  write(1, buffer);
  std::swap_ranges(bytes.begin(), bytes.begin() + 12288, bytes.begin() + 12288);
  EXPECT_EQ(failure([&] { read(0, buffer); }).code(), ErrorCode::corrupt);
  EXPECT_EQ(failure([&] { read(1, buffer); }).code(), ErrorCode::corrupt);
}

// A pass sees right inputs only, runs once, and runs with the checksums on a worker.
TEST_F(TileIoTest, AProcessRunsItsPassOnRightInputsOnceOnAWorker) {
  start();
  Buffer in;
  Buffer out;
  in.fill(5);
  write(0, in);
  const auto loop_thread = executor_->run_blocking(
      []() -> Task<std::thread::id> { co_return std::this_thread::get_id(); }());
  disk_->fail(Fault::bit_flip_on_read);
  std::vector<std::thread::id> passes;
  std::array outputs{tile(1, out)};
  const auto process = [&]() -> Task<> {
    const std::array inputs{tile(0, in)};
    co_await tiles_->fetch(inputs[0], IoPriority::stage);
    co_await tiles_->process(inputs, outputs, {}, [&] {
      passes.push_back(std::this_thread::get_id());
      for (std::size_t i = 0; i < kTile.value; ++i) {
        ASSERT_EQ(in.data[i], std::byte{5});
        out.data[i] = std::byte{6};
      }
    });
    co_await tiles_->store(outputs[0]);
  };
  executor_->run_blocking(process());
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_NE(passes[0], loop_thread);
  EXPECT_NE(passes[0], std::this_thread::get_id());
  read(1, in);
  EXPECT_EQ(in.data[kTile.value - 1], std::byte{6});
}

TEST_F(TileIoTest, WithoutVerificationNothingIsHashedOrFound) {
  start({.verify = false});
  Buffer buffer;
  buffer.fill(1);
  write(0, buffer);
  EXPECT_EQ(store_->checksum(extents_[0]), 0U);
  disk_->store()->find("/d/run/rank-0/states.bin")->bytes()[5] = std::byte{9};
  read(0, buffer);
  EXPECT_EQ(buffer.data[5], std::byte{9});
}

// Never answered while somebody waits: the waiter is told, the memory stays with the disk.
TEST_F(TileIoTest, ARequestWithoutAnAnswerKeepsItsMemory) {
  start({.retry_ns = 1'000'000'000}, Delivery::manual, 20'000'000);
  Budget budget(Tier::host, 1_MiB);
  Reservation reservation(budget, "slabs", Bytes{2 * 12288});
  std::array<Buffer, 2> memory;
  SlabPool pool(*executor_, reservation, {{memory[0].data, 12288}, {memory[1].data, 12288}});
  const auto write_from_slab = [&]() -> Task<> {
    SlabSet slab = co_await pool.acquire(1);
    co_await tiles_->write({extents_[0], slab[0].data()});
  };
  const Error error = failure([&] { executor_->run_blocking(write_from_slab()); });
  EXPECT_EQ(error.context().errnum, ETIMEDOUT);
  EXPECT_THAT(error.what(), HasSubstr("no answer within nvme.timeout_s"));
  const auto look = [&]() -> Task<std::pair<bool, std::size_t>> {
    co_return std::pair(executor_->has_overdue_io(), pool.free());
  };
  EXPECT_EQ(executor_->run_blocking(look()), std::pair(true, std::size_t{1}));
  // Who asks for more than is left is told instead of waiting forever.
  const auto ask = [&]() -> Task<> { const SlabSet both = co_await pool.acquire(2); };
  EXPECT_EQ(failure([&] { executor_->run_blocking(ask()); }).context().errnum, ETIMEDOUT);
  // The answer comes after all.
  EXPECT_EQ(disk_->deliver(1), 1U);
  while (executor_->run_blocking(look()).first) std::this_thread::yield();
}

// Slow, but it answers: each request waits longer than the timeout in the line of the disk.
TEST_F(TileIoTest, ADiskThatAnswersNowAndThenIsNotGivenUp) {
  start({.retry_ns = 0}, Delivery::manual, 60'000'000);
  std::vector<std::unique_ptr<Buffer>> buffers;
  TaskGroup group;
  const auto all = [&]() -> Task<> {
    for (std::size_t i = 0; i < kTiles; ++i) {
      buffers.push_back(std::make_unique<Buffer>());
      group.start(tiles_->write(tile(i, *buffers.back())));
    }
    co_await group.join();
  };
  std::atomic<bool> stop = false;
  std::thread disk([&] {
    while (!stop) {
      std::this_thread::sleep_for(std::chrono::milliseconds(35));
      disk_->deliver(1);
    }
  });
  const Error error = failure([&] { executor_->run_blocking(all()); });
  stop = true;
  disk.join();
  EXPECT_STREQ(error.what(), "no error");
}

// Whatever else goes wrong on the way, the extent can be written again.
TEST_F(TileIoTest, ALogSinkThatThrowsLosesNoWrite) {
  start({.retry_ns = 1'000'000'000});
  TileIoOptions options{.retry_ns = 1'000'000'000};
  options.name = [](ExtentId) { return TileName{}; };
  options.log = [](LogLevel, std::string_view) { throw std::runtime_error("sink"); };
  TileIo throwing(*executor_, *store_, options);
  Buffer buffer;
  buffer.fill(1);
  disk_->fail(Fault::no_space);
  EXPECT_THROW(executor_->run_blocking(throwing.write(tile(0, buffer))), std::runtime_error);
  write(0, buffer);
  read(0, buffer);
  EXPECT_EQ(buffer.data[0], std::byte{1});
}

// One of many requests at once fails or is late: that one and no other.
TEST_F(TileIoTest, OneOfManyFailsAloneAndNobodyWaitsForAnother) {
  start({.retry_ns = 0});
  std::array<Buffer, kTiles> buffers;
  for (std::size_t i = 0; i < kTiles; ++i) {
    buffers[i].fill(static_cast<int>(i + 1));
    write(i, buffers[i]);
  }
  for (const Fault fault : {Fault::short_transfer, Fault::io_error}) {
    std::vector<std::size_t> failed;
    std::vector<std::size_t> read_well;
    const auto one = [&](std::size_t i) -> Task<> {
      try {
        co_await tiles_->read(tile(i, buffers[i]), IoPriority::stage);
        read_well.push_back(i);
      } catch (const Error&) {
        failed.push_back(i);
      }
    };
    const auto all = [&]() -> Task<> {
      TaskGroup group;
      for (std::size_t i = 0; i < kTiles; ++i) group.start(one(i));
      co_await group.join();
    };
    disk_->fail(fault, 2);
    executor_->run_blocking(all());
    EXPECT_EQ(failed.size(), 1U);
    EXPECT_EQ(read_well.size(), kTiles - 1);
  }

  disk_->fail(Fault::slow, 0);  // tile 0 takes 20 ms more
  std::vector<std::size_t> order;
  const auto note = [&](std::size_t i) -> Task<> {
    co_await tiles_->read(tile(i, buffers[i]), IoPriority::stage);
    order.push_back(i);
  };
  const auto all = [&]() -> Task<> {
    TaskGroup group;
    for (std::size_t i = 0; i < kTiles; ++i) group.start(note(i));
    co_await group.join();
  };
  executor_->run_blocking(all());
  ASSERT_EQ(order.size(), kTiles);
  EXPECT_EQ(order.back(), 0U) << "others waited for the slow one";
}

}  // namespace
}  // namespace strata::test
