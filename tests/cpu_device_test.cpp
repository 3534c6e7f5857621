#include "cpu/cpu_device.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "device_conformance.hpp"
#include "ports/device_memory.hpp"
#include "strata/error.hpp"

namespace strata::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance,
                         ::testing::Values(DeviceUnderTest{.name = "cpu",
                                                           .make =
                                                               [](Bytes arena) {
                                                                 return std::make_unique<CpuDevice>(
                                                                     CpuDevice::Options{.arena =
                                                                                            arena});
                                                               }}),
                         [](const auto& instance) { return instance.param.name; });

TEST(HostArena, ExposesTheExactSizeOnAHugePageBorder) {
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{4097}, (6_MiB).value + 3}) {
    const HostArena arena{Bytes{size}};
    EXPECT_EQ(arena.bytes().size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.bytes().data()) % (2_MiB).value, 0U);
    EXPECT_TRUE(std::all_of(arena.bytes().begin(), arena.bytes().end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
  EXPECT_TRUE(HostArena{0_B}.bytes().empty());
}

TEST(HostArena, UntouchedPagesCostNothing) {
  // Only address space is taken: a 64 GiB arena that is touched in one place.
  const HostArena arena{64_GiB};
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  arena.bytes()[0] = std::byte{1};
  unsigned char resident = 1;
  ASSERT_EQ(::mincore(arena.bytes().data() + (32_GiB).value, page, &resident), 0);
  EXPECT_EQ(resident & 1, 0);
}

TEST(HostArena, AnImpossibleSizeThrows) {
  try {
    const HostArena arena{Bytes{std::uint64_t{1} << 60}};
    FAIL() << "an exabyte was mapped";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
  }
}

TEST(HostArena, ContainsWholeRangesOnly) {
  const HostArena arena{1000_B};
  std::byte* const begin = arena.bytes().data();
  EXPECT_TRUE(contains(arena.bytes(), begin, 1000_B));
  EXPECT_TRUE(contains(arena.bytes(), begin + 999, 1_B));
  EXPECT_FALSE(contains(arena.bytes(), begin, 1001_B));
  EXPECT_FALSE(contains(arena.bytes(), begin + 1000, 1_B));
  EXPECT_FALSE(contains(arena.bytes(), begin - 1, 1_B));
  EXPECT_FALSE(contains(arena.bytes(), begin + 1, Bytes{~std::uint64_t{0}}));
  EXPECT_TRUE(contains(arena.bytes(), nullptr, 0_B));
}

TEST(EventPool, RecyclesSlotsOfDoneEventsOnly) {
  EventPool pool;
  std::vector<HostFunction> scratch;
  const Event pending = pool.acquire();
  for (int i = 0; i < 100; ++i) {
    const Event event = pool.acquire();
    EXPECT_NE(event.slot, pending.slot);
    EXPECT_FALSE(pool.done(event));
    pool.fire(event, scratch);
    EXPECT_TRUE(pool.done(event));
  }
  EXPECT_EQ(pool.slots(), 2U);
  EXPECT_FALSE(pool.done(pending));
}

TEST(EventPool, AStaleHandleIsDoneWhileItsSlotIsPending) {
  EventPool pool;
  std::vector<HostFunction> scratch;
  const Event old = pool.acquire();
  pool.fire(old, scratch);
  const Event reuse = pool.acquire();
  ASSERT_EQ(reuse.slot, old.slot);
  EXPECT_TRUE(pool.done(old));
  pool.wait(old);
  int calls = 0;
  pool.notify(old, [&calls] { ++calls; });
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(pool.done(reuse));
}

TEST(EventPool, WakesWaitersOnOtherThreads) {
  EventPool pool;
  std::vector<HostFunction> scratch;
  const Event event = pool.acquire();
  std::atomic<int> woken{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] {
      pool.wait(event);
      ++woken;
    });
  }
  EXPECT_EQ(woken, 0);
  pool.fire(event, scratch);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(woken, 4);
}

TEST(EventPoolDeathTest, AnEventFiresOnce) {
  EventPool pool;
  std::vector<HostFunction> scratch;
  const Event event = pool.acquire();
  pool.fire(event, scratch);
  EXPECT_DEATH(pool.fire(event, scratch), "fires once");
}

TEST(CpuDevice, StreamsServeManyCallers) {
  CpuDevice device({.arena = 1_MiB});
  constexpr int kCallers = 4;
  constexpr int kOps = 500;
  std::vector<StreamId> streams;
  for (int i = 0; i < kCallers; ++i) streams.push_back(device.create_stream("shared"));
  std::atomic<int> ran{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < kOps; ++i) {
        const StreamId from = streams[static_cast<std::size_t>(caller)];
        const StreamId to = streams[static_cast<std::size_t>((caller + i) % kCallers)];
        device.launch(from, [&ran] { ++ran; });
        device.wait(to, device.record(from));
      }
      device.synchronize(device.record(streams[static_cast<std::size_t>(caller)]));
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ran, kCallers * kOps);
}

TEST(CpuDeviceDeathTest, RegisteredHostMemoryIsASet) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CpuDevice device({.arena = 1_MiB});
  std::vector<std::byte> memory(100);
  const std::span<std::byte> all(memory);
  EXPECT_DEATH(device.unregister_host(all), "never registered");
  device.register_host(all.subspan(10, 50));
  EXPECT_DEATH(device.unregister_host(all.subspan(10, 49)), "never registered");
  EXPECT_DEATH(device.register_host(all.subspan(0, 11)), "registered already");
  EXPECT_DEATH(device.register_host(all.subspan(59, 10)), "registered already");
  device.register_host(all.subspan(60, 10));
  device.register_host(all.subspan(0, 10));
  device.unregister_host(all.subspan(10, 50));
  device.register_host(all.subspan(20, 5));
}

TEST(CpuDeviceDeathTest, ElementOpsStayInTheArena) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CpuDevice device({.arena = 1_MiB});
  const StreamId stream = device.create_stream("ops");
  std::vector<float> host(4);
  auto* const inside = reinterpret_cast<float*>(device.arena().data());
  EXPECT_DEATH(device.element_op(stream, AccumulateOp{host.data(), inside, DType::fp32, 4, false}),
               "outside the arena");
  EXPECT_DEATH(device.element_op(stream, AccumulateOp{inside, host.data(), DType::fp32, 4, false}),
               "outside the arena");
}

TEST(CpuDeviceDeathTest, NothingIsEnqueuedAfterClose) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CpuDevice device({.arena = 1_MiB});
  const StreamId stream = device.create_stream("closed");
  device.close();
  EXPECT_DEATH(device.launch(stream, [] {}, {}), "closed stream");
  EXPECT_DEATH(device.create_stream("late"), "closed device");
}

}  // namespace
}  // namespace strata::test
