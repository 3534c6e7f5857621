#include "support/adversarial_device.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <limits>

#include "base/rng.hpp"
#include "device_conformance.hpp"
#include "support/staging_pipeline.hpp"

namespace strata::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Nothing runs unless it is demanded, however slow the machine is.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(1);

std::vector<DeviceUnderTest> adversaries() {
  std::vector<DeviceUnderTest> devices;
  for (const DemandPolicy policy : {DemandPolicy::as_late_as_possible, DemandPolicy::random}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      const std::string_view prefix = policy == DemandPolicy::random ? "random" : "late";
      devices.push_back(
          {.name = fmt::format("{}_{}", prefix, seed),
           .make =
               [policy, seed](Bytes arena) {
                 return std::make_unique<AdversarialDevice>(
                     AdversarialDevice::Options{.arena = arena, .seed = seed, .policy = policy});
               },
           .violations =
               [](Device& device) {
                 return dynamic_cast<AdversarialDevice&>(device).violations();
               }});
    }
  }
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Adversarial, DeviceConformance, ::testing::ValuesIn(adversaries()),
                         [](const auto& instance) { return instance.param.name; });

TEST(AdversarialPipeline, ACorrectProgramHasNoViolation) {
  for (const DemandPolicy policy : {DemandPolicy::as_late_as_possible, DemandPolicy::random}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(fmt::format("policy {} seed {}", static_cast<int>(policy), seed));
      AdversarialDevice device({.arena = 1_MiB, .seed = seed, .policy = policy});
      StagingPipeline pipeline(device);
      pipeline.run(true);
      device.close();
      EXPECT_THAT(device.violations(), IsEmpty());
      EXPECT_TRUE(pipeline.result_is_right());
    }
  }
}

TEST(AdversarialGate, RunsNothingThatNobodyDemands) {
  std::atomic<int> ran{0};
  AdversarialDevice device({.arena = 1_MiB, .patience = kForever});
  const StreamId lazy = device.create_stream("lazy");
  const StreamId other = device.create_stream("other");
  device.launch(lazy, [&ran] { ++ran; });
  const Event first = device.record(lazy);
  device.launch(lazy, [&ran] { ++ran; });
  device.synchronize(device.record(other));
  EXPECT_EQ(ran, 0);
  device.wait(other, first);
  device.synchronize(device.record(other));
  EXPECT_EQ(ran, 1);
  device.close();
  EXPECT_EQ(ran, 2);
}

TEST(AdversarialGate, PassesDemandOnOnlyWhenTheWaitIsReached) {
  AdversarialDevice device({.arena = 1_MiB, .patience = kForever});
  const StreamId first = device.create_stream("first");
  const StreamId second = device.create_stream("second");
  std::vector<int> order;
  device.launch(second, [&order] { order.push_back(2); });
  const Event late = device.record(second);
  device.launch(first, [&order] { order.push_back(1); });
  device.wait(first, late);
  device.synchronize(device.record(first));
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(AdversarialGate, TheSeedLetsSomeWorkRunEarly) {
  constexpr int kStreams = 32;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::atomic<int> ran{0};
    std::promise<void> first;
    AdversarialDevice device(
        {.arena = 1_MiB, .seed = seed, .policy = DemandPolicy::random, .patience = kForever});
    for (int i = 0; i < kStreams; ++i) {
      device.launch(device.create_stream("stream"), [&] {
        if (ran.fetch_add(1) == 0) first.set_value();
      });
    }
    first.get_future().wait();
    EXPECT_LT(ran, kStreams) << "seed " << seed;
    device.close();
    EXPECT_EQ(ran, kStreams) << "seed " << seed;
  }
}

TEST(AdversarialGate, RanksThatMeetMakeProgress) {
  std::promise<void> one_is_here;
  std::promise<void> two_is_here;
  AdversarialDevice one({.arena = 1_MiB});
  AdversarialDevice two({.arena = 1_MiB});
  const StreamId stream_one = one.create_stream("collectives");
  const StreamId stream_two = two.create_stream("collectives");
  const auto meet = [](std::promise<void>& mine, std::promise<void>& theirs) {
    return [&mine, arrived = theirs.get_future().share()] {
      mine.set_value();
      arrived.wait();
    };
  };
  one.launch(stream_one, meet(one_is_here, two_is_here));
  two.launch(stream_two, meet(two_is_here, one_is_here));
  // Nobody asks for rank two's part.
  one.synchronize(one.record(stream_one));
}

TEST(RangeMap, AgreesWithOneValuePerByte) {
  constexpr std::size_t kBytes = 200;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RangeMap<int> map;
    std::array<int, kBytes> bytes{};
    for (std::uint64_t i = 0; i < 300; ++i) {
      const std::uint64_t draw = rng::at(seed, i);
      const std::size_t begin = draw % kBytes;
      const std::size_t end = begin + (draw >> 16) % (kBytes - begin + 1);
      const int added = static_cast<int>((draw >> 32) % 3) - 1;
      map.update({begin, end}, [&](AddressRange, int& value) { value += added; });
      for (std::size_t at = begin; at < end; ++at) bytes[at] += added;
      if (i % 50 == 49) map.drop_defaults();
    }
    std::size_t next = 0;
    int previous = std::numeric_limits<int>::min();
    map.update({0, kBytes}, [&](AddressRange range, int& value) {
      ASSERT_EQ(range.begin, next) << "seed " << seed;
      for (; next < range.end; ++next) ASSERT_EQ(value, bytes[next]) << "seed " << seed;
      // Merged as far as possible, but for the gaps that this very call filled.
      ASSERT_TRUE(value != previous || value == 0) << "seed " << seed;
      previous = value;
    });
    EXPECT_EQ(next, kBytes);
  }
}

TEST(OrderChecker, StaysSmallOverManyOps) {
  std::vector<std::byte> arena(std::size_t{4} << 20);
  std::vector<std::byte> host(arena.size());
  std::vector<std::string> violations;
  OrderChecker checker(arena, true, [&](std::string text) { violations.push_back(text); });
  const StreamId streams[] = {StreamId{0}, StreamId{1}};
  checker.add_stream("up");
  checker.add_stream("down");
  constexpr std::size_t kRanges = 512;
  constexpr std::size_t kSize = 4096;
  const std::span<std::byte> all(arena);
  std::uint64_t generation = 0;
  for (int round = 0; round < 40; ++round) {
    for (std::size_t i = 0; i < kRanges; ++i) {
      const auto memory = all.subspan(i * 2 * kSize, kSize);
      checker.lease(memory);
      const Access up[] = {{host.data() + i * kSize, Bytes{kSize}, false},
                           {memory.data(), Bytes{kSize}, true}};
      checker.op(streams[0], "h2d copy", up);
      const Event ready{0, ++generation};
      checker.record(streams[0], ready);
      checker.wait(streams[1], ready);
      const Access down[] = {{memory.data(), Bytes{kSize}, false}};
      checker.op(streams[1], "launch", down);
    }
    const Event last{1, ++generation};
    checker.record(streams[1], last);
    checker.host_knows(last);
    for (std::size_t i = 0; i < kRanges; ++i) {
      checker.release(all.subspan(i * 2 * kSize, kSize));
    }
  }
  EXPECT_THAT(violations, IsEmpty());
  // At most one per range in the arena, per gap between ranges, and per host range, twice over.
  EXPECT_LE(checker.ranges(), 2 * 3 * kRanges);
}

}  // namespace
}  // namespace strata::test
