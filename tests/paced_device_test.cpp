#include "paced/paced_device.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "device_conformance.hpp"
#include "strata/clock.hpp"
#include "support/manual_clock.hpp"

namespace strata::test {
namespace {

using std::chrono::milliseconds;

// A slow machine makes work late, never early, so times have lower bounds. That two streams
// overlapped shows in their busy seconds: together more than the time that passed.
class Stopwatch {
 public:
  double seconds() const { return static_cast<double>(clock_.now_ns() - begin_ns_) * 1e-9; }

 private:
  SteadyClock clock_;
  std::int64_t begin_ns_ = clock_.now_ns();
};

DeviceUnderTest paced(std::string name, LinkPace link) {
  return {.name = std::move(name), .make = [link](Bytes arena) {
            return std::make_unique<PacedDevice>(PacedDevice::Options{.arena = arena,
                                                                      .host_to_device = link,
                                                                      .device_to_host = link,
                                                                      .device_to_device = link});
          }};
}

INSTANTIATE_TEST_SUITE_P(Paced, DeviceConformance,
                         ::testing::Values(paced("unpaced", {}),
                                           paced("slow", {5e8, std::chrono::microseconds(20)})),
                         [](const auto& instance) { return instance.param.name; });

constexpr LinkPace kLink{1e8, milliseconds(1)};  // 1 MB takes 10 + 1 ms

class PacedDeviceTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kStride = 4'000'000;

  // Each stream has bytes of its own.
  void copy_to_device(StreamId stream, std::size_t size) {
    const std::size_t offset = stream.value * kStride;
    device_.copy(stream, device_.arena().data() + offset, host_.data() + offset, Bytes{size},
                 CopyKind::host_to_device);
  }
  void copy_to_host(StreamId stream, std::size_t size) {
    const std::size_t offset = stream.value * kStride;
    device_.copy(stream, host_.data() + offset, device_.arena().data() + offset, Bytes{size},
                 CopyKind::device_to_host);
  }
  double busy_seconds() const { return device_.busy_seconds(a_) + device_.busy_seconds(b_); }
  void finish(StreamId stream) { device_.synchronize(device_.record(stream)); }

  PacedDevice device_{{.arena = 8_MiB,
                       .host_to_device = kLink,
                       .device_to_host = kLink,
                       .device_to_device = kLink,
                       .elements_per_second = 1e6}};
  std::vector<std::byte> host_ = std::vector<std::byte>((8_MiB).value);
  StreamId a_ = device_.create_stream("a");
  StreamId b_ = device_.create_stream("b");
};

TEST_F(PacedDeviceTest, CopiesTakeLatencyAndSizeOverRate) {
  const Stopwatch watch;
  copy_to_device(a_, 2'000'000);
  finish(a_);
  EXPECT_GE(watch.seconds(), 0.021);
  EXPECT_GE(device_.busy_seconds(a_), 0.020);
}

TEST_F(PacedDeviceTest, OneDirectionIsSharedAndTwoAreNot) {
  const Stopwatch one_way;
  copy_to_device(a_, 2'000'000);
  copy_to_device(b_, 2'000'000);
  finish(a_);
  finish(b_);
  EXPECT_GE(one_way.seconds(), 0.041);

  const double busy_before = busy_seconds();
  const Stopwatch both_ways;
  copy_to_device(a_, 4'000'000);
  copy_to_host(b_, 4'000'000);
  finish(a_);
  finish(b_);
  EXPECT_GE(both_ways.seconds(), 0.041);
  EXPECT_LT(both_ways.seconds(), busy_seconds() - busy_before);
}

TEST_F(PacedDeviceTest, ComputeTakesItsTimeBesideCopies) {
  const Stopwatch watch;
  bool ran = false;
  device_.launch_for(a_, milliseconds(40), [&ran] { ran = true; });
  copy_to_device(b_, 4'000'000);
  finish(a_);
  finish(b_);
  EXPECT_TRUE(ran);
  EXPECT_GE(watch.seconds(), 0.041);
  EXPECT_LT(watch.seconds(), busy_seconds());
}

TEST_F(PacedDeviceTest, ElementOpsTakeTheirRate) {
  const Stopwatch watch;
  auto* const values = reinterpret_cast<float*>(device_.arena().data());
  device_.element_op(a_, AccumulateOp{values, values + 20'000, DType::fp32, 20'000, true});
  finish(a_);
  EXPECT_GE(watch.seconds(), 0.020);
}

TEST_F(PacedDeviceTest, LateWakeUpsDoNotAddUp) {
  // 400 naps whose every wake-up is some 60 us late: 24 ms if errors added up. They cross streams,
  // so that event waits are on the path as well.
  constexpr int kRounds = 200;
  double best = 1;
  for (int attempt = 0; attempt < 50 && best > 0.100; ++attempt) {
    const Stopwatch watch;
    for (int i = 0; i < kRounds; ++i) {
      device_.launch_for(a_, std::chrono::microseconds(200));
      device_.wait(b_, device_.record(a_));
      device_.launch_for(b_, std::chrono::microseconds(200));
      device_.wait(a_, device_.record(b_));
    }
    finish(a_);
    EXPECT_GE(watch.seconds(), 0.080);
    best = std::min(best, watch.seconds());
  }
  RecordProperty("best_seconds", std::to_string(best));
  EXPECT_LT(best, 0.100);
}

TEST_F(PacedDeviceTest, IdleTimeIsNotMadeUpFor) {
  device_.launch_for(a_, milliseconds(1));
  finish(a_);
  device_.launch_for(b_, milliseconds(20));
  finish(b_);
  const Stopwatch watch;
  device_.launch_for(a_, milliseconds(10));
  finish(a_);
  EXPECT_GE(watch.seconds(), 0.010);
}

TEST(ManualClock, PassesTimeOnlyWhenTold) {
  ManualClock clock(5);
  EXPECT_EQ(clock.now_ns(), 5);
  clock.advance(10);
  EXPECT_EQ(clock.now_ns(), 15);
}

}  // namespace
}  // namespace strata::test
