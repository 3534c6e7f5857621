// The CUDA device on the stand-in: the conformance suite, and what happens when any of its calls
// fails.
#include "cuda/cuda_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device_conformance.hpp"
#include "strata/cuda_interop.hpp"
#include "support/error_of.hpp"
#include "support/standin/standin.hpp"

namespace strata::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

standin::Options with_seed(std::uint64_t seed) {
  return {.memory = 64_MiB,
          .seed = seed,
          .policy = seed % 2 == 0 ? DemandPolicy::as_late_as_possible : DemandPolicy::random};
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override { standin::configure(); }
  void TearDown() override { EXPECT_THAT(standin::finish(), IsEmpty()); }
};

std::unique_ptr<Device> make(Bytes arena, std::uint64_t seed, cuda::ArenaSource source) {
  standin::configure(with_seed(seed));
  return std::make_unique<CudaDevice>(CudaDevice::Options{.arena = arena, .source = source});
}

DeviceUnderTest device_under_test(std::uint64_t seed, cuda::ArenaSource source,
                                  const std::string& name) {
  return {.name = name,
          .make = [=](Bytes arena) { return make(arena, seed, source); },
          .missing = [] { return std::string(); },
          .violations = [](Device&) { return standin::violations(); }};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance,
                         testing::Values(device_under_test(0, cuda::ArenaSource::malloc, "late"),
                                         device_under_test(1, cuda::ArenaSource::malloc, "random"),
                                         device_under_test(2, cuda::ArenaSource::pool, "pool")),
                         [](const auto& instance) { return instance.param.name; });

TEST_F(CudaDeviceTest, TellsWhyThereIsNoGpu) {
  standin::configure({.count_error = cudaErrorNoDevice});
  const Error none = error_of([] { CudaDevice device({.arena = 1_MiB}); });
  EXPECT_EQ(none.code(), ErrorCode::not_supported);
  EXPECT_THAT(none.what(), HasSubstr("nvidia-smi"));

  standin::configure({.driver_version = 12020, .count_error = cudaErrorInsufficientDriver});
  const Error old = error_of([] { CudaDevice device({.arena = 1_MiB}); });
  EXPECT_EQ(old.code(), ErrorCode::not_supported);
  EXPECT_THAT(old.what(), HasSubstr("supports CUDA 12.2 at most and this build needs CUDA 13.0"));

  standin::configure({.driver_version = 0, .count_error = cudaErrorInsufficientDriver});
  const Error missing = error_of([] { CudaDevice device({.arena = 1_MiB}); });
  EXPECT_THAT(missing.what(), HasSubstr("no NVIDIA driver is installed"));

  standin::configure({.compute_major = 7, .compute_minor = 5});
  const Error small = error_of([] { CudaDevice device({.arena = 1_MiB}); });
  EXPECT_THAT(small.what(), HasSubstr("compute capability 7.5"));
}

TEST_F(CudaDeviceTest, RefusesAnIndexOrAnArenaThatTheMachineLacks) {
  standin::configure({.devices = 2, .memory = 8_MiB});
  const Error index = error_of([] { CudaDevice device({.arena = 1_MiB, .index = 2}); });
  EXPECT_EQ(index.code(), ErrorCode::config);
  EXPECT_THAT(index.what(), HasSubstr("2 are visible"));
  for (const auto source : {cuda::ArenaSource::malloc, cuda::ArenaSource::pool}) {
    const Error size = error_of([&] { CudaDevice device({.arena = 9_MiB, .source = source}); });
    EXPECT_EQ(size.code(), ErrorCode::budget_exceeded);
    EXPECT_THAT(size.what(), HasSubstr("8 MiB are free"));
  }
}

// To go back to another GPU would make a context there.
TEST_F(CudaDeviceTest, EntersItsGpuAndNoOther) {
  standin::configure({.devices = 2});
  CudaDevice device({.arena = 1_MiB, .index = 1});
  Pinned host(device, std::vector<std::byte>(100));
  const StreamId stream = device.create_stream("work");
  device.zero(stream, device.arena().data(), 100_B);
  device.copy(stream, host.data(), device.arena().data(), 100_B, CopyKind::device_to_host);
  device.synchronize(device.record(stream));
  std::atomic<bool> notified{false};
  device.launch(stream, [] {});
  device.notify(device.record(stream), [&] { notified = true; });
  while (!notified) std::this_thread::yield();
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 1);
  // This thread's and the watcher's.
  EXPECT_LE(standin::calls()["cudaSetDevice"], 2U);
  device.close();
}

TEST_F(CudaDeviceTest, RefusesPageableMemory) {
  CudaDevice device({.arena = 1_MiB});
  const StreamId stream = device.create_stream("copies");
  std::vector<std::byte> pageable(64);
  const Error error = error_of([&] {
    device.copy(stream, device.arena().data(), pageable.data(), 64_B, CopyKind::host_to_device);
  });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("register_host"));
  EXPECT_THAT(error.what(), HasSubstr("'copies'"));
}

TEST_F(CudaDeviceTest, WorksOnStreamsOfTheProgram) {
  CudaDevice device({.arena = 1_MiB});
  cudaStream_t mine = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking), cudaSuccess);
  const StreamId adopted = from_cuda_stream(device, mine, "mine");
  const StreamId own = device.create_stream("own");
  EXPECT_EQ(to_cuda_stream(device, adopted), mine);
  EXPECT_NE(to_cuda_stream(device, own), mine);

  Pinned host(device, std::vector<std::byte>(256, std::byte{1}));
  Pinned result(device, std::vector<std::byte>(256));
  std::byte* const data = device.arena().data();
  // The program's own call on its own stream, ordered by our events.
  device.copy(own, data, host.data(), 256_B, CopyKind::host_to_device);
  device.wait(adopted, device.record(own));
  ASSERT_EQ(cudaMemsetAsync(data, 2, 128, mine), cudaSuccess);
  device.wait(own, device.record(adopted));
  device.copy(own, result.data(), data, 256_B, CopyKind::device_to_host);
  device.synchronize(device.record(own));
  EXPECT_EQ(result.bytes()[127], std::byte{2});
  EXPECT_EQ(result.bytes()[128], std::byte{1});
  device.close();
  EXPECT_EQ(cudaStreamDestroy(mine), cudaSuccess);
}

// A host function may still run when its stream has failed: who is told so may free what it uses.
TEST_F(CudaDeviceTest, AFailureWaitsForTheFunctionThatRuns) {
  CudaDevice device({.arena = 1_MiB});
  const StreamId a = device.create_stream("a");
  const StreamId b = device.create_stream("b");
  std::atomic<bool> started{false};
  std::atomic<bool> ended{false};
  device.launch(a, [&] {
    started = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ended = true;
  });
  const Event after = device.record(a);
  while (!started) static_cast<void>(device.done(after));
  standin::fail_async(standin::works() + 1);
  device.zero(b, device.arena().data(), 100_B);
  const Error error = error_of([&] { device.synchronize(device.record(b)); });
  EXPECT_THAT(error.what(), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_TRUE(ended);
  device.close();
}

// Events are reused, and a wait that the order of the calls makes true is not made.
TEST_F(CudaDeviceTest, ReusesEventsAndLeavesOutWaits) {
  CudaDevice device({.arena = 1_MiB});
  const StreamId a = device.create_stream("a");
  const StreamId b = device.create_stream("b");
  for (int i = 0; i < 100; ++i) device.synchronize(device.record(a));
  const auto created = standin::calls()["cudaEventCreateWithFlags"];
  for (int i = 0; i < 100; ++i) device.synchronize(device.record(a));
  EXPECT_EQ(standin::calls()["cudaEventCreateWithFlags"], created);

  const std::uint64_t before = standin::waits();
  std::atomic<bool> ran{false};
  device.launch(a, [&] { ran = true; });
  const Event first = device.record(a);
  const Event second = device.record(a);
  device.wait(a, first);   // its own stream
  device.wait(b, second);  // the only one that is needed
  device.wait(b, second);
  device.wait(b, first);  // an earlier event of the same stream
  EXPECT_EQ(standin::waits() - before, 1U);
  device.synchronize(device.record(b));
  EXPECT_TRUE(ran);
  device.wait(b, device.record(a));
  device.synchronize(device.record(b));
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

// One run of everything that the device can do. Returns the failure that it told, if any.
std::optional<Error> exercise() {
  std::optional<Error> told;
  try {
    CudaDevice device({.arena = 1_MiB});
    const StreamId a = device.create_stream("a");
    const StreamId b = device.create_stream("b");
    {
      Pinned host(device, std::vector<std::byte>(4096, std::byte{1}));
      std::byte* const data = device.arena().data();
      std::atomic<int> notified{0};
      std::atomic<int> ran{0};
      device.copy(a, data, host.data(), 4096_B, CopyKind::host_to_device);
      device.zero(a, data + 4096, 4096_B);
      device.launch(a, [&] { ++ran; });
      const Event ready = device.record(a);
      device.wait(b, ready);
      device.element_op(b, ConvertOp{data + 8192, DType::bf16, data, DType::fp32, 1000});
      device.copy(b, host.data(), data + 8192, 2000_B, CopyKind::device_to_host);
      const Event last = device.record(b);
      device.notify(last, [&] { ++notified; });
      static_cast<void>(device.done(ready));
      try {
        device.synchronize(last);
      } catch (const Error& error) {
        told = error;
      }
      while (!device.done(last)) std::this_thread::yield();
      static_cast<void>(device.busy_seconds(a));
      // The host memory must not go while anything that was enqueued still uses it.
      for (const StreamId stream : {a, b}) {
        try {
          device.synchronize(device.record(stream));
        } catch (const Error& error) {
          told = error;
        }
      }
      while (notified == 0) std::this_thread::yield();
      if (!told && device.failure()) told = device.failure();
    }
    device.close();
    if (!told) told = device.failure();
  } catch (const Error& error) {
    told = error;
  }
  return told;
}

// For every call that the device makes, at every time that it makes it: the failure is told, by an
// Error that names the call, and neither a hang nor a leak nor a use of what is gone follows.
TEST_F(CudaDeviceTest, EveryFailureIsTold) {
  if (kThreadSanitizer) GTEST_SKIP() << "a lost device tells nobody when its work ends";
  standin::configure(with_seed(0));
  EXPECT_EQ(exercise(), std::nullopt);
  const auto calls = standin::calls();
  EXPECT_THAT(standin::finish(), IsEmpty());
  // They report; their own failure has no meaning.
  const std::set<std::string> quiet = {"cudaGetLastError", "cudaPeekAtLastError"};
  int failures = 0;
  for (const auto& [call, count] : calls) {
    if (quiet.contains(call)) continue;
    for (std::uint64_t k = 1; k <= count; ++k) {
      for (const bool sticky : {false, true}) {
        SCOPED_TRACE(testing::Message() << call << " number " << k << (sticky ? ", sticky" : ""));
        standin::configure(with_seed(0));
        standin::fail(standin::Failure{call, k, cudaErrorUnknown, sticky});
        const std::optional<Error> told = exercise();
        const bool happened = standin::calls()[call] >= k;
        EXPECT_THAT(standin::finish(), IsEmpty());
        if (!happened) continue;  // queries depend on timing
        ++failures;
        // What fails while everything is being given back has nobody to tell any more.
        const bool at_the_end = call == "cudaFree" || call == "cudaSetDevice" ||
                                call == "cudaGetDevice" || call == "cudaEventDestroy" ||
                                call == "cudaStreamDestroy";
        if (at_the_end && !told) continue;
        ASSERT_TRUE(told.has_value());
        EXPECT_THAT(told->what(), HasSubstr("cudaErrorUnknown"));
      }
    }
  }
  EXPECT_GT(failures, 50);
}

// Work that faults when it runs.
TEST_F(CudaDeviceTest, EveryAsynchronousFaultIsTold) {
  if (kThreadSanitizer) GTEST_SKIP() << "a lost device tells nobody when its work ends";
  standin::configure(with_seed(0));
  EXPECT_EQ(exercise(), std::nullopt);
  const std::uint64_t works = standin::works();
  EXPECT_THAT(standin::finish(), IsEmpty());
  ASSERT_GE(works, 5U);
  for (std::uint64_t k = 1; k <= works; ++k) {
    SCOPED_TRACE(k);
    standin::configure(with_seed(k));
    standin::fail_async(k);
    const std::optional<Error> told = exercise();
    ASSERT_TRUE(told.has_value());
    EXPECT_EQ(told->code(), ErrorCode::device);
    EXPECT_THAT(told->what(), HasSubstr("cudaErrorIllegalAddress"));
    EXPECT_THAT(standin::finish(), IsEmpty());
  }
}

}  // namespace
}  // namespace strata::test
