// A program on the stand-in that uses each of its waits, and the worlds to run it in.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <set>

#include "support/standin/test_programs.hpp"

namespace strata::test::standin {

// A program as a trainer has one: batches go up, are worked on and come down, each on a stream of
// its own, through one buffer. It gives everything back whatever fails.
class Pipeline {
 public:
  static constexpr std::size_t kCount = 1000;
  static constexpr std::size_t kBatches = 2;

  // The first error, if any.
  cudaError_t run() {
    make();
    for (std::size_t batch = 0; batch < kBatches && error_ == cudaSuccess; ++batch) {
      enqueue(batch);
    }
    finish_work();
    give_back();
    return error_;
  }

  bool result_is_right() const {
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      for (std::size_t i = 0; i < kCount; ++i) {
        if (out_[batch][i] != in_[batch][i] + 1) return false;
      }
    }
    return true;
  }

 private:
  bool ok(cudaError_t result) {
    if (error_ == cudaSuccess) error_ = result;
    return result == cudaSuccess;
  }

  void make() {
    ok(cudaSetDevice(0));
    for (cudaStream_t* stream : {&up_, &work_, &down_}) {
      if (!ok(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking))) *stream = nullptr;
    }
    for (cudaEvent_t* event : {&uploaded_, &worked_, &downloaded_}) {
      if (!ok(cudaEventCreateWithFlags(event, cudaEventDisableTiming))) *event = nullptr;
    }
    if (!ok(cudaMalloc(&memory_, kBytes))) memory_ = nullptr;
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      for (std::size_t i = 0; i < kCount; ++i) in_[batch][i] = static_cast<float>(batch + i);
      for (float* host : {in_[batch].data(), out_[batch].data()}) {
        if (ok(cudaHostRegister(host, kBytes, cudaHostRegisterPortable))) registered_.insert(host);
      }
    }
  }

  void enqueue(std::size_t batch) {
    auto* const data = static_cast<float*>(memory_);
    ok(batch == 0 ? cudaSuccess : cudaStreamWaitEvent(up_, downloaded_, 0)) &&
        ok(cudaMemcpyAsync(data, in_[batch].data(), kBytes, cudaMemcpyHostToDevice, up_)) &&
        ok(cudaEventRecord(uploaded_, up_)) && ok(cudaStreamWaitEvent(work_, uploaded_, 0)) &&
        ok(add_one(work_, data, kCount)) && ok(cudaEventRecord(worked_, work_)) &&
        ok(cudaStreamWaitEvent(down_, worked_, 0)) &&
        ok(cudaMemcpyAsync(out_[batch].data(), data, kBytes, cudaMemcpyDeviceToHost, down_)) &&
        ok(cudaEventRecord(downloaded_, down_));
  }

  void finish_work() {
    for (const cudaStream_t stream : {up_, work_, down_}) {
      if (stream != nullptr && !ok(cudaStreamSynchronize(stream))) {
        static_cast<void>(cudaStreamSynchronize(stream));
      }
    }
    ok(cudaGetLastError());
  }

  void give_back() {
    for (const cudaEvent_t event : {uploaded_, worked_, downloaded_}) {
      if (event != nullptr) ok(cudaEventDestroy(event));
    }
    for (const cudaStream_t stream : {up_, work_, down_}) {
      if (stream != nullptr) ok(cudaStreamDestroy(stream));
    }
    for (float* host : registered_) ok(cudaHostUnregister(host));
    if (memory_ != nullptr) ok(cudaFree(memory_));
  }

  static constexpr std::size_t kBytes = kCount * sizeof(float);
  cudaError_t error_ = cudaSuccess;
  cudaStream_t up_ = nullptr;
  cudaStream_t work_ = nullptr;
  cudaStream_t down_ = nullptr;
  cudaEvent_t uploaded_ = nullptr;
  cudaEvent_t worked_ = nullptr;
  cudaEvent_t downloaded_ = nullptr;
  void* memory_ = nullptr;
  std::set<float*> registered_;
  std::array<std::array<float, kCount>, kBatches> in_{};
  std::array<std::array<float, kCount>, kBatches> out_{};
};

inline constexpr std::uint64_t kWaits = 5;
inline constexpr std::uint64_t kWorks = 6;

// All policies, with several seeds.
inline void for_each_world(const std::function<void(const Options&)>& test) {
  for (const DemandPolicy policy : {DemandPolicy::as_late_as_possible, DemandPolicy::random}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(fmt::format("policy {} seed {}", static_cast<int>(policy), seed));
      test({.memory = 1_MiB, .seed = seed, .policy = policy});
    }
  }
}

}  // namespace strata::test::standin
