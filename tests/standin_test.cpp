// What the stand-in promises of CUDA (support/standin/standin.hpp), seen from programs that call
// it.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "support/standin/test_pipeline.hpp"
#include "support/standin/test_programs.hpp"

namespace strata::test::standin {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using StandinDevices = Standin;

TEST_F(StandinDevices, AreDescribed) {
  configure({.devices = 2, .memory = 3_MiB, .compute_major = 8, .compute_minor = 6});
  int value = 0;
  expect_ok(cudaGetDeviceCount(&value));
  EXPECT_EQ(value, 2);
  expect_ok(cudaDriverGetVersion(&value));
  EXPECT_EQ(value, 13000);
  expect_ok(cudaRuntimeGetVersion(&value));
  EXPECT_EQ(value, CUDART_VERSION);
  expect_ok(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor, 1));
  EXPECT_EQ(value, 6);
  cudaDeviceProp first;
  cudaDeviceProp second;
  expect_ok(cudaGetDeviceProperties(&first, 0));
  expect_ok(cudaGetDeviceProperties(&second, 1));
  EXPECT_EQ(first.major, 8);
  EXPECT_EQ(first.totalGlobalMem, (3_MiB).value);
  EXPECT_NE(std::memcmp(&first.uuid, &second.uuid, sizeof(first.uuid)), 0);
  char bus[32] = {};
  expect_ok(cudaDeviceGetPCIBusId(bus, sizeof(bus), 1));
  EXPECT_STREQ(bus, "0000:02:00.0");
  EXPECT_EQ(cudaDeviceGetPCIBusId(bus, 12, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  expect_ok(cudaSetDevice(1));
  std::thread([] {
    int mine = -1;
    expect_ok(cudaGetDevice(&mine));
    EXPECT_EQ(mine, 0);
  }).join();
  expect_ok(cudaGetDevice(&value));
  EXPECT_EQ(value, 1);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinDevices, MayBeMissing) {
  int count = 7;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInitializationError);
  configure({.driver_version = 0, .count_error = cudaErrorNoDevice});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
  expect_ok(cudaDriverGetVersion(&count));
  EXPECT_EQ(cudaGetLastError(), cudaErrorNoDevice);
  expect_ok(cudaGetLastError());
  EXPECT_STREQ(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorNoDevice), "no CUDA-capable device is detected");
  EXPECT_THAT(finish(), IsEmpty());
}

using StandinMemory = Standin;

TEST_F(StandinMemory, IsAlignedAndHoldsGarbage) {
  configure({.memory = 1_MiB});
  const cudaStream_t stream = make_stream();
  float* const first = make_memory(3);
  float* const second = make_memory(3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % 256, 0U);
  for (const float value : download(stream, second, 3)) EXPECT_TRUE(std::isnan(value));
  upload(stream, first, {1, 2, 3});
  expect_ok(cudaFree(first));
  EXPECT_EQ(make_memory(3), first);
  for (const float value : download(stream, first, 3)) EXPECT_TRUE(std::isnan(value));
  expect_ok(cudaFree(first));
  expect_ok(cudaFree(second));
  expect_ok(cudaFree(nullptr));
  end(stream);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinMemory, RunsOut) {
  configure({.memory = 1_MiB});
  void* memory = nullptr;
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, (1_MiB).value + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  expect_ok(cudaMalloc(&memory, (1_MiB).value - 512));
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  expect_ok(cudaMemGetInfo(&free_bytes, &total_bytes));
  EXPECT_EQ(free_bytes, 512U);
  EXPECT_EQ(total_bytes, (1_MiB).value);
  EXPECT_EQ(cudaMalloc(&more, 513), cudaErrorMemoryAllocation);
  expect_ok(cudaFree(memory));
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("is no allocation, or was freed before")));
}

using StandinDeathTest = Standin;

TEST_F(StandinDeathTest, TheHostCannotReadDeviceMemory) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  configure();
  volatile float* const memory = make_memory(1);
  EXPECT_DEATH(static_cast<void>(*memory), "");
  EXPECT_DEATH(*memory = 1, "");
  expect_ok(cudaFree(const_cast<float*>(memory)));
}

TEST_F(StandinMemory, IsFreedInStreamOrder) {
  configure({.memory = 1_MiB, .patience = kForever});
  const cudaStream_t stream = make_stream();
  void* first = nullptr;
  expect_ok(cudaMallocAsync(&first, (1_MiB).value, stream));
  expect_ok(cudaMemsetAsync(first, 1, 16, stream));
  expect_ok(cudaFreeAsync(first, stream));
  // Room comes from what has been freed, whose stream has to get there first.
  void* second = nullptr;
  expect_ok(cudaMallocAsync(&second, (1_MiB).value, stream));
  EXPECT_EQ(second, first);
  expect_ok(cudaFreeAsync(second, stream));
  end(stream);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  expect_ok(cudaMemGetInfo(&free_bytes, &total_bytes));
  EXPECT_EQ(free_bytes, total_bytes);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinMemory, IsFreedOnlyWhenTheDeviceIsIdle) {
  configure({.patience = kForever});
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(4);
  Pinned<float> host({1, 2, 3, 4});
  std::vector<float> seen;
  expect_ok(
      cudaMemcpyAsync(memory, host.data(), host.size_bytes(), cudaMemcpyHostToDevice, stream));
  const Access read{memory, Bytes{16}, false};
  expect_ok(launch(stream, {&read, 1},
                   [memory, &seen] { seen.assign(host_view(memory), host_view(memory) + 4); }));
  expect_ok(cudaFree(memory));
  EXPECT_THAT(seen, ElementsAre(1, 2, 3, 4));
  expect_ok(cudaStreamDestroy(stream));
}

TEST_F(StandinMemory, IsToldApart) {
  configure({.devices = 2});
  expect_ok(cudaSetDevice(1));
  float* const memory = make_memory(8);
  Pinned<float> host({1, 2});
  std::array<float, 2> pageable{};
  cudaPointerAttributes attributes;
  expect_ok(cudaPointerGetAttributes(&attributes, memory + 3));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 1);
  EXPECT_EQ(attributes.hostPointer, nullptr);
  expect_ok(cudaPointerGetAttributes(&attributes, host.data() + 1));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  expect_ok(cudaPointerGetAttributes(&attributes, pageable.data()));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  expect_ok(cudaFree(memory));
}

TEST_F(StandinMemory, IsRegisteredOnce) {
  configure();
  std::vector<std::byte> host(4096);
  expect_ok(cudaHostRegister(host.data() + 1024, 1024, cudaHostRegisterDefault));
  for (const auto& [offset, size] : {std::pair{1024, 1024}, {0, 1025}, {2047, 8}, {0, 4096}}) {
    EXPECT_EQ(cudaHostRegister(host.data() + offset, static_cast<std::size_t>(size), 0),
              cudaErrorHostMemoryAlreadyRegistered);
  }
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaErrorHostMemoryNotRegistered);
  expect_ok(cudaHostRegister(host.data(), 1024, cudaHostRegisterDefault));
  expect_ok(cudaHostUnregister(host.data()));
  expect_ok(cudaHostUnregister(host.data() + 1024));
  EXPECT_THAT(finish(), SizeIs(5));
}

TEST_F(StandinMemory, IsNotUnregisteredUnderACopy) {
  configure({.patience = kForever});
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(2);
  std::vector<float> host{1, 2};
  expect_ok(cudaHostRegister(host.data(), 8, 0));
  expect_ok(cudaMemcpyAsync(memory, host.data(), 8, cudaMemcpyHostToDevice, stream));
  expect_ok(cudaHostUnregister(host.data()));
  EXPECT_THAT(violations(),
              ElementsAre(AllOf(HasSubstr("cudaHostUnregister"), HasSubstr("h2d copy"))));
  expect_ok(cudaFree(memory));
  end(stream);
  EXPECT_THAT(finish(), SizeIs(1));
}

TEST_F(StandinMemory, WhatIsNotGivenBackIsTold) {
  configure();
  static_cast<void>(make_stream());
  static_cast<void>(make_event());
  static_cast<void>(make_memory(1));
  float host = 0;
  expect_ok(cudaHostRegister(&host, sizeof(host), 0));
  EXPECT_THAT(finish(), ElementsAre("leak: stream 1 of device 0", "leak: event 1 of device 0",
                                    "leak: allocation 1 of 4 bytes on device 0",
                                    "leak: registration 1 of 4 bytes of host memory"));
}

TEST_F(StandinMemory, AnUnfinishedRunIsToldByTheNext) {
  configure();
  static_cast<void>(make_stream());
  configure();
  EXPECT_THAT(finish(), ElementsAre("an unfinished run before: leak: stream 1 of device 0"));
}

using StandinOrder = Standin;

TEST_F(StandinOrder, WorkRunsAsLateAsPossible) {
  configure({.patience = kForever});
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  std::atomic<bool> ran{false};
  expect_ok(launch(stream, {}, [&ran] { ran = true; }));
  expect_ok(cudaEventRecord(event, stream));
  EXPECT_FALSE(ran);
  // A question demands it now and then.
  int questions = 1;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++questions;
  EXPECT_TRUE(ran);
  EXPECT_GT(questions, 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  expect_ok(cudaPeekAtLastError());
  expect_ok(cudaStreamQuery(stream));
  expect_ok(cudaEventDestroy(event));
  expect_ok(cudaStreamDestroy(stream));
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinOrder, StreamsHavePriorities) {
  configure();
  int least = -1;
  int greatest = 1;
  cudaStream_t stream = nullptr;
  expect_ok(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT_LT(greatest, least);
  expect_ok(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  end(stream);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 64), cudaErrorInvalidValue);
}

TEST_F(StandinOrder, EventsTellTime) {
  configure();
  const cudaStream_t stream = make_stream();
  const cudaEvent_t begin = make_event(cudaEventDefault);
  const cudaEvent_t done = make_event(cudaEventDefault);
  const cudaEvent_t timeless = make_event();
  float ms = -1;
  expect_ok(cudaEventRecord(begin, stream));
  expect_ok(launch(stream, {}, [] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
    while (std::chrono::steady_clock::now() < until) {
    }
  }));
  expect_ok(cudaEventRecord(done, stream));
  expect_ok(cudaEventSynchronize(done));
  expect_ok(cudaEventElapsedTime(&ms, begin, done));
  EXPECT_GE(ms, 3);
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, timeless), cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {begin, done, timeless}) expect_ok(cudaEventDestroy(event));
  end(stream);
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("event 3 was made without timing")));
}

TEST_F(StandinOrder, AnEventThatWasNeverRecordedStandsForNothing) {
  configure();
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  expect_ok(cudaStreamWaitEvent(stream, event, 0));
  expect_ok(cudaEventQuery(event));
  expect_ok(cudaEventSynchronize(event));
  expect_ok(cudaEventDestroy(event));
  end(stream);
  EXPECT_THAT(finish(), ElementsAre("cudaStreamWaitEvent: event 1 was never recorded",
                                    "cudaEventQuery: event 1 was never recorded",
                                    "cudaEventSynchronize: event 1 was never recorded"));
}

TEST_F(StandinOrder, WhatWasDestroyedIsRefused) {
  configure();
  const cudaStream_t stream = make_stream();
  const cudaStream_t alive = make_stream();
  const cudaEvent_t event = make_event();
  expect_ok(cudaStreamDestroy(stream));
  expect_ok(cudaEventDestroy(event));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, alive), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(launch(stream, {}, [] {}), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorNotSupported);
  end(alive);
  EXPECT_THAT(finish(), AllOf(SizeIs(6), Contains(HasSubstr("default stream"))));
}

TEST_F(StandinOrder, NothingIsDestroyedBeforeTheHostKnowsItToBeIdle) {
  configure();
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  expect_ok(launch(stream, {}, [] {}));
  expect_ok(cudaEventRecord(event, stream));
  expect_ok(cudaEventDestroy(event));
  expect_ok(cudaStreamDestroy(stream));
  EXPECT_THAT(
      finish(),
      ElementsAre(HasSubstr("event 1 has work that the host does not know to have finished"),
                  HasSubstr("stream 1 has work that the host does not know to have finished")));
}

TEST_F(StandinOrder, DevicesDoNotMix) {
  configure({.devices = 2});
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  float* const memory = make_memory(4);
  expect_ok(cudaEventRecord(event, stream));
  expect_ok(cudaSetDevice(1));
  const cudaStream_t other = make_stream();
  EXPECT_EQ(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaErrorNotSupported);
  EXPECT_EQ(launch(stream, {}, [] {}), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 16, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 16, other), cudaErrorInvalidValue);
  EXPECT_THAT(violations(), SizeIs(5));
  // As in CUDA, these do not ask for the current device.
  expect_ok(cudaEventRecord(event, stream));
  expect_ok(cudaEventSynchronize(event));
  expect_ok(cudaEventDestroy(event));
  expect_ok(cudaFree(memory));
  end(stream);
  end(other);
  EXPECT_THAT(finish(), SizeIs(5));
}

TEST_F(StandinOrder, TheHostLearnsFromAHostFunction) {
  configure({.patience = kForever});
  const cudaStream_t stream = make_stream();
  std::atomic<bool> told{false};
  float* const memory = make_memory(3);
  {
    Pinned<float> host({1, 2, 3});
    expect_ok(cudaMemcpyAsync(memory, host.data(), 12, cudaMemcpyHostToDevice, stream));
    host_reads(host.data(), 4_B);
    EXPECT_THAT(violations(), IsEmpty());
    host_writes(host.data(), 4_B);
    EXPECT_THAT(violations(), ElementsAre(HasSubstr("write by the host")));
    expect_ok(cudaLaunchHostFunc(
        stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &told));
    while (!told) std::this_thread::yield();
    host_writes(host.data(), 4_B);
  }
  end(stream);
  expect_ok(cudaFree(memory));
  EXPECT_THAT(finish(), SizeIs(1));
}

TEST_F(StandinOrder, AHostFunctionMustNotCallCuda) {
  configure();
  const cudaStream_t stream = make_stream();
  struct Results {
    cudaError_t cuda = cudaSuccess;
    ncclResult_t nccl = ncclSuccess;
  } results;
  const auto call = [](void* data) {
    auto& told = *static_cast<Results*>(data);
    int value = 0;
    told.cuda = cudaGetDevice(&value);
    told.nccl = ncclGetVersion(&value);
  };
  expect_ok(cudaLaunchHostFunc(stream, call, &results));
  expect_ok(cudaStreamSynchronize(stream));
  EXPECT_EQ(results.cuda, cudaErrorNotPermitted);
  EXPECT_EQ(results.nccl, ncclInvalidUsage);
  expect_ok(launch(stream, {}, [&] { call(&results); }));
  end(stream);
  EXPECT_THAT(finish(),
              AllOf(SizeIs(4), Each(HasSubstr("called by a function that runs on a stream"))));
}

using StandinCopies = Standin;

TEST_F(StandinCopies, FromPageableMemoryAreTold) {
  configure();
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(2);
  std::vector<float> host{1, 2};
  std::vector<float> back(2);
  expect_ok(cudaMemcpyAsync(memory, host.data(), 8, cudaMemcpyHostToDevice, stream));
  host.assign(2, 0);
  expect_ok(cudaMemcpyAsync(back.data(), memory, 8, cudaMemcpyDeviceToHost, stream));
  EXPECT_THAT(back, ElementsAre(1, 2));
  expect_ok(cudaFree(memory));
  end(stream);
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("pageable memory"), HasSubstr("pageable memory")));
}

TEST_F(StandinCopies, StayInsideTheirRanges) {
  configure();
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(4);
  float* const other = make_memory(4);
  const auto copy = [&](void* dst, const void* src, std::size_t size, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(dst, src, size, kind, stream);
  };
  {
    Pinned<float> host({1, 2, 3, 4});
    EXPECT_EQ(copy(memory + 1, host.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT_EQ(copy(memory, host.data() + 1, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT_EQ(copy(memory + 8, host.data(), 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT_EQ(copy(memory, host.data(), 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    EXPECT_EQ(copy(memory + 1, memory, 8, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemsetAsync(memory + 3, 0, 8, stream), cudaErrorInvalidValue);
    EXPECT_THAT(violations(), SizeIs(6));
    expect_ok(copy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
    expect_ok(copy(memory, host.data(), 16, cudaMemcpyDefault));
    expect_ok(copy(other, memory, 16, cudaMemcpyDeviceToDevice));
    expect_ok(cudaMemsetAsync(other + 1, 0, 8, stream));
    EXPECT_THAT(download(stream, other, 4), ElementsAre(1, 0, 0, 4));
  }
  expect_ok(cudaFree(memory));
  expect_ok(cudaFree(other));
  end(stream);
  EXPECT_THAT(finish(), SizeIs(6));
}

TEST_F(StandinCopies, AKernelOutsideItsAllocationLosesTheDevice) {
  configure();
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(4);
  expect_ok(add_one(stream, memory + 1, 4));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaFree(memory), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("what the kernel reads runs past its allocation")));
}

using StandinFaults = Standin;

TEST_F(StandinFaults, ACorrectProgramHasNone) {
  for_each_world([](const Options& options) {
    configure(options);
    Pipeline pipeline;
    expect_ok(pipeline.run());
    EXPECT_TRUE(pipeline.result_is_right());
    EXPECT_EQ(waits(), kWaits);
    EXPECT_EQ(works(), kWorks);
    EXPECT_THAT(finish(), IsEmpty());
  });
}

TEST_F(StandinFaults, EveryCallCanFail) {
  configure();
  expect_ok(Pipeline().run());
  const std::map<std::string, std::uint64_t> made = calls();
  EXPECT_THAT(finish(), IsEmpty());
  EXPECT_EQ(made.at("cudaMemcpyAsync"), 4U);
  EXPECT_EQ(made.at("cudaLaunchKernel"), 2U);
  for (const auto& [name, count] : made) {
    for (std::uint64_t k = 1; k <= count; ++k) {
      for (const bool sticky : {false, true}) {
        SCOPED_TRACE(fmt::format("{} #{}, sticky {}", name, k, sticky));
        configure();
        fail({name, k, cudaErrorLaunchFailure, sticky});
        EXPECT_EQ(Pipeline().run(), cudaErrorLaunchFailure);
        EXPECT_THAT(finish(), IsEmpty());
      }
    }
  }
}

TEST_F(StandinFaults, EveryPieceOfWorkCanFault) {
  for (std::uint64_t k = 1; k <= kWorks; ++k) {
    SCOPED_TRACE(fmt::format("work {}", k));
    configure();
    fail_async(k, cudaErrorIllegalAddress);
    EXPECT_EQ(Pipeline().run(), cudaErrorIllegalAddress);
    EXPECT_THAT(finish(), IsEmpty());
  }
}

TEST_F(StandinFaults, AFaultStopsWhatIsBehindIt) {
  configure({.devices = 2, .patience = kForever});
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  std::atomic<int> ran{0};
  fail_async(2, cudaErrorAssert);
  expect_ok(launch(stream, {}, [&ran] { ++ran; }));
  expect_ok(launch(stream, {}, [&ran] { ++ran; }));
  expect_ok(cudaEventRecord(event, stream));
  // Work before a host function is not held back: from here on, every call may tell.
  expect_ok(cudaLaunchHostFunc(
      stream, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &ran));
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorAssert);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorAssert);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorAssert);
  EXPECT_EQ(cudaGetLastError(), cudaErrorAssert);
  EXPECT_EQ(cudaGetLastError(), cudaErrorAssert);
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaErrorAssert);
  expect_ok(cudaSetDevice(1));
  expect_ok(cudaGetDevice(&device));
  EXPECT_EQ(cudaSetDevice(0), cudaErrorAssert);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorAssert);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorAssert);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinFaults, AStickyFailureIsForGood) {
  configure({.patience = kForever});
  const cudaStream_t stream = make_stream();
  std::atomic<int> ran{0};
  expect_ok(launch(stream, {}, [&ran] { ++ran; }));
  fail({"cudaGetDevice", 1, cudaErrorLaunchFailure, true});
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetDevice(&device), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorLaunchFailure);
  EXPECT_THAT(finish(), IsEmpty());
  EXPECT_EQ(ran, 0);
}

TEST_F(StandinFaults, ACallFailsOnce) {
  configure();
  int device = 0;
  fail({"cudaGetDevice", 2, cudaErrorUnknown});
  expect_ok(cudaGetDevice(&device));
  EXPECT_EQ(cudaGetDevice(&device), cudaErrorUnknown);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorUnknown);
  EXPECT_EQ(cudaGetLastError(), cudaErrorUnknown);
  expect_ok(cudaGetDevice(&device));
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinDeathTest, AMisspeltFunctionIsNoFunction) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  configure();
  EXPECT_DEATH(fail(Failure{"cudaMemCpyAsync", 1, cudaErrorUnknown}), "has no function");
}

}  // namespace
}  // namespace strata::test::standin
