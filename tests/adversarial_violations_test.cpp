// Programs with defects on purpose: real data races, so the thread sanitizer does not run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <thread>

#include "support/adversarial_device.hpp"
#include "support/staging_pipeline.hpp"

namespace strata::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class AdversarialDeviceTest : public ::testing::Test {
 protected:
  std::span<std::byte> bytes(std::size_t offset, std::size_t size) {
    return device_.arena().subspan(offset, size);
  }
  std::span<std::byte> lease(std::size_t offset, std::size_t size) {
    device_.note_lease(bytes(offset, size));
    return bytes(offset, size);
  }
  void zero(StreamId stream, std::span<std::byte> memory) {
    device_.zero(stream, memory.data(), Bytes{memory.size()});
  }
  void upload(StreamId stream, std::span<std::byte> memory) {
    device_.copy(stream, memory.data(), host_.data(), Bytes{memory.size()},
                 CopyKind::host_to_device);
  }
  void download(StreamId stream, std::span<std::byte> memory) {
    device_.copy(stream, host_.data(), memory.data(), Bytes{memory.size()},
                 CopyKind::device_to_host);
  }
  void finish(StreamId stream) { device_.synchronize(device_.record(stream)); }

  std::vector<std::byte> host_ = std::vector<std::byte>(4096, std::byte{1});
  AdversarialDevice device_{{.arena = 1_MiB}};
  StreamId a_ = device_.create_stream("a");
  StreamId b_ = device_.create_stream("b");
};

TEST_F(AdversarialDeviceTest, AConflictWithoutAWaitIsARace) {
  const auto memory = lease(0x100, 256);
  zero(a_, memory);
  download(b_, memory.subspan(16, 32));
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(StartsWith("race: "), HasSubstr("d2h copy #1 on 'b' reads"),
                                HasSubstr("arena[0x110, 0x130)"), HasSubstr("zero #1 on 'a'"))));
}

TEST_F(AdversarialDeviceTest, ARaceIsOneEvenIfTheWorkHasLongRun) {
  const auto memory = lease(0, 256);
  std::promise<void> ran;
  device_.zero(a_, memory.data(), 256_B);
  device_.launch(a_, [&ran] { ran.set_value(); });
  ran.get_future().wait();
  download(b_, memory);
  EXPECT_THAT(device_.violations(), ElementsAre(StartsWith("race: ")));
  device_.close();
}

TEST_F(AdversarialDeviceTest, WritesRaceWithReadsAndReadsDoNotRaceWithReads) {
  const auto memory = lease(0, 256);
  zero(a_, memory);
  finish(a_);
  std::vector<std::byte> other(256);
  download(a_, memory);
  device_.copy(b_, other.data(), memory.data(), 256_B, CopyKind::device_to_host);
  EXPECT_THAT(device_.violations(), IsEmpty());
  zero(b_, memory);  // after its own read, and unordered with that of stream a
  EXPECT_THAT(device_.violations(), ElementsAre(HasSubstr("d2h copy #2 on 'a'")));
  device_.close();
}

TEST_F(AdversarialDeviceTest, NeighboursDoNotConflict) {
  zero(a_, lease(0, 256));
  zero(b_, lease(256, 256));
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(AdversarialDeviceTest, HostMemoryIsCheckedToo) {
  const auto memory = lease(0, 512);
  upload(a_, memory.subspan(0, 256));
  zero(b_, memory.subspan(256, 256));
  download(b_, memory.subspan(256, 256));
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(HasSubstr("host memory"), HasSubstr("h2d copy #1 on 'a'"))));
}

TEST_F(AdversarialDeviceTest, AnEventOrdersOnlyWhatStandsBeforeIt) {
  const auto memory = lease(0, 512);
  zero(a_, memory.subspan(0, 256));
  const Event event = device_.record(a_);
  zero(a_, memory.subspan(256, 256));
  device_.wait(b_, event);
  zero(b_, memory.subspan(0, 256));
  EXPECT_THAT(device_.violations(), IsEmpty());
  zero(b_, memory.subspan(256, 256));
  EXPECT_THAT(device_.violations(), ElementsAre(HasSubstr("zero #2 on 'a'")));
}

TEST_F(AdversarialDeviceTest, OrderIsTransitive) {
  const StreamId c = device_.create_stream("c");
  const auto memory = lease(0, 256);
  zero(a_, memory);
  device_.wait(b_, device_.record(a_));
  device_.wait(c, device_.record(b_));
  download(c, memory);
  EXPECT_THAT(device_.violations(), IsEmpty());
}

TEST_F(AdversarialDeviceTest, AnOldHandleStillOrders) {
  const auto memory = lease(0, 256);
  zero(a_, memory);
  const Event old = device_.record(a_);
  std::promise<void> fired;
  device_.launch(a_, [&fired] { fired.set_value(); });
  fired.get_future().wait();
  ASSERT_EQ(device_.record(b_).slot, old.slot);
  const StreamId c = device_.create_stream("c");
  device_.wait(c, old);
  download(c, memory);
  EXPECT_THAT(device_.violations(), IsEmpty());
  device_.close();
}

TEST_F(AdversarialDeviceTest, TheHostKnowsByDoneSynchronizeAndNotify) {
  const auto memory = lease(0, 768);
  zero(a_, memory.subspan(0, 256));
  const Event polled = device_.record(a_);
  while (!device_.done(polled)) std::this_thread::yield();
  zero(b_, memory.subspan(0, 256));

  zero(a_, memory.subspan(256, 256));
  device_.synchronize(device_.record(a_));
  zero(b_, memory.subspan(256, 256));

  zero(a_, memory.subspan(512, 256));
  std::promise<void> called;
  device_.notify(device_.record(a_), [&called] { called.set_value(); });
  called.get_future().wait();
  zero(b_, memory.subspan(512, 256));
  EXPECT_THAT(device_.violations(), IsEmpty());
  device_.close();
}

TEST_F(AdversarialDeviceTest, HostAccessesMustKnow) {
  const auto memory = lease(0, 256);
  upload(a_, memory);
  device_.host_reads(host_.data(), 256_B);
  EXPECT_THAT(device_.violations(), IsEmpty());
  device_.host_writes(host_.data() + 255, 1_B);
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(HasSubstr("write by the host"), HasSubstr("h2d copy #1"))));
  finish(a_);
  device_.host_writes(host_.data(), 256_B);
  EXPECT_EQ(device_.violations().size(), 1U);
}

TEST_F(AdversarialDeviceTest, UnregisteringMemoryInUseIsARace) {
  const auto memory = lease(0, 256);
  device_.register_host(host_);
  upload(a_, memory);
  device_.unregister_host(host_);
  EXPECT_THAT(device_.violations(), ElementsAre(StartsWith("race: ")));
}

TEST_F(AdversarialDeviceTest, ReuseBeforeLastUseIsFound) {
  const auto memory = lease(0, 256);
  zero(a_, memory);
  const Event last_use = device_.record(a_);
  device_.note_release(memory);
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(StartsWith("reuse: "), HasSubstr("zero #1 on 'a'"))));
  device_.note_lease(memory);
  EXPECT_THAT(device_.violations(), ElementsAre(StartsWith("reuse: "), StartsWith("reuse: ")));
  device_.synchronize(last_use);
  device_.note_release(memory);
  lease(0, 256);
  EXPECT_EQ(device_.violations().size(), 2U);
}

TEST_F(AdversarialDeviceTest, ReadBeforeReadyIsFound) {
  const auto memory = lease(0, 256);
  zero(a_, memory.subspan(0, 255));
  download(a_, memory.subspan(0, 255));
  EXPECT_THAT(device_.violations(), IsEmpty());
  download(a_, memory);
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(StartsWith("unwritten: "), HasSubstr("arena[0xff, 0x100)"))));
}

TEST_F(AdversarialDeviceTest, ALeaseForgetsWhatTheOneBeforeWrote) {
  const auto memory = lease(0, 256);
  zero(a_, memory);
  finish(a_);
  device_.note_release(memory);
  device_.note_lease(memory);
  download(a_, memory);
  EXPECT_THAT(device_.violations(), ElementsAre(StartsWith("unwritten: ")));
  finish(a_);
  float value = 0;
  std::memcpy(&value, host_.data(), sizeof value);
  EXPECT_TRUE(std::isnan(value));
}

TEST_F(AdversarialDeviceTest, DeclaredAccessOutsideLeasesIsFound) {
  lease(256, 256);
  zero(a_, bytes(511, 2));
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(StartsWith("unleased: "), HasSubstr("arena[0x200, 0x201)"))));
}

TEST_F(AdversarialDeviceTest, UndeclaredWriteOutsideLeasesIsFound) {
  device_.launch(a_, [memory = bytes(1000, 1)] { memory[0] = std::byte{9}; });
  finish(a_);
  EXPECT_THAT(device_.violations(), IsEmpty());
  lease(512, 1024);
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(StartsWith("canary: "), HasSubstr("arena[0x200, 0x600)"))));
}

TEST_F(AdversarialDeviceTest, UndeclaredWriteAfterReleaseIsFoundAtTheLatestByClose) {
  const auto memory = lease(0, 256);
  device_.note_release(memory);
  device_.launch(a_, [memory] { memory[255] = std::byte{0}; });
  device_.close();
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(StartsWith("canary: "), HasSubstr("arena[0x0, 0x100)"))));
}

TEST_F(AdversarialDeviceTest, LeasesDoNotOverlap) {
  const auto memory = lease(0, 256);
  lease(255, 256);
  EXPECT_THAT(device_.violations(), ElementsAre(HasSubstr("arena[0xff, 0x100) is leased already")));
  device_.note_release(memory);
  device_.note_release(memory.subspan(0, 1));
  EXPECT_THAT(device_.violations().back(), HasSubstr("is not leased"));
}

TEST_F(AdversarialDeviceTest, LaunchesAndElementOpsDeclareTheirRanges) {
  const auto gradient = lease(0, 16);
  const auto accumulator = lease(256, 16);
  const std::array<Access, 1> writes{Access{gradient.data(), 16_B, true}};
  device_.launch(
      a_, [gradient] { std::memset(gradient.data(), 0, 16); }, writes);
  device_.wait(b_, device_.record(a_));
  const AccumulateOp op{reinterpret_cast<float*>(accumulator.data()), gradient.data(), DType::fp32,
                        4, false};
  device_.element_op(a_, op);
  EXPECT_THAT(device_.violations(),
              ElementsAre(AllOf(StartsWith("unwritten: "), HasSubstr("accumulate #2"),
                                HasSubstr("arena[0x100, 0x110)"))));
  zero(b_, gradient);
  EXPECT_THAT(device_.violations().back(), AllOf(StartsWith("race: "), HasSubstr("accumulate #2")));
}

TEST_F(AdversarialDeviceTest, AdamWDeclaresItsRunsOnly) {
  const auto states = lease(0, 4 * 400);
  const auto param = lease(2048, 200);
  auto* const values = reinterpret_cast<float*>(states.data());
  const UpdateCoefficients coefficients;
  const UpdateOp op{.gradient = values,
                    .gradient_dtype = DType::fp32,
                    .weights = values + 100,
                    .moments = {values + 200, values + 300},
                    .param = param.data(),
                    .count_elems = 100,
                    .runs = {{10, 20, coefficients}}};
  for (int array = 0; array < 4; ++array) {
    zero(a_, std::as_writable_bytes(std::span(values + 100 * array + 10, 20)));
  }
  device_.element_op(a_, op);
  EXPECT_THAT(device_.violations(), IsEmpty());
  download(a_, param.subspan(20, 40));
  EXPECT_THAT(device_.violations(), IsEmpty());
  download(a_, param.subspan(20, 41));
  EXPECT_THAT(device_.violations(), ElementsAre(StartsWith("unwritten: ")));
}

TEST(AdversarialDeviceDeathTest, MayAbortAtTheFirstViolation) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  AdversarialDevice device({.arena = 1_MiB, .abort_on_violation = true});
  const StreamId stream = device.create_stream("abort");
  EXPECT_DEATH(device.zero(stream, device.arena().data(), 1_B), "unleased: zero #1 on 'abort'");
}

TEST(AdversarialDevice, MayIgnoreLeases) {
  AdversarialDevice device({.arena = 1_MiB, .check_leases = false});
  const StreamId a = device.create_stream("a");
  const StreamId b = device.create_stream("b");
  device.copy(a, device.arena().data(), device.arena().data() + 64, 64_B,
              CopyKind::device_to_device);
  EXPECT_THAT(device.violations(), IsEmpty());
  device.zero(b, device.arena().data(), 1_B);
  EXPECT_THAT(device.violations(), ElementsAre(StartsWith("race: ")));
}

TEST(AdversarialPipeline, LeavingOutAnyWaitIsFound) {
  for (int left_out = 0; left_out < StagingPipeline::kWaits; ++left_out) {
    AdversarialDevice device({.arena = 1_MiB});
    StagingPipeline pipeline(device, left_out);
    pipeline.run(true);
    EXPECT_FALSE(device.violations().empty()) << "without wait " << left_out;
  }
}

TEST(AdversarialPipeline, RunningLateShowsAMissingWaitInTheData) {
  std::byte result{0};
  AdversarialDevice device(
      {.arena = 1_MiB, .patience = std::chrono::hours(1), .check_leases = false});
  const StreamId compute = device.create_stream("compute");
  const StreamId down = device.create_stream("down");
  const auto memory = device.arena().subspan(0, 1);
  device.launch(compute, [memory] { memory[0] = std::byte{42}; });
  device.copy(down, &result, memory.data(), 1_B, CopyKind::device_to_host);
  device.synchronize(device.record(down));
  EXPECT_EQ(result, std::byte{0});
}

}  // namespace
}  // namespace strata::test
