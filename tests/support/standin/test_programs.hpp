// What the stand-in's own tests are made of: programs that call CUDA and expect no error.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/standin/standin.hpp"

namespace strata::test::standin {

// clang-tidy 14 knows no std::source_location.
inline void expect_ok(cudaError_t result, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  if (result != cudaSuccess) ADD_FAILURE_AT(file, line) << cudaGetErrorName(result);
}
inline void expect_ok(ncclResult_t result, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  if (result != ncclSuccess) ADD_FAILURE_AT(file, line) << ncclGetErrorString(result);
}

// Nothing runs unless it is demanded, however slow the machine is.
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(1);

// A test that expects violations calls finish() itself.
class Standin : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(finish(), ::testing::IsEmpty()); }
};

inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  expect_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

inline cudaEvent_t make_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  expect_ok(cudaEventCreateWithFlags(&event, flags));
  return event;
}

template <class T = float>
T* make_memory(std::size_t count) {
  void* memory = nullptr;
  expect_ok(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}

inline void end(cudaStream_t stream) {
  expect_ok(cudaStreamSynchronize(stream));
  expect_ok(cudaStreamDestroy(stream));
}

// Registered host memory.
template <class T = float>
class Pinned {
 public:
  explicit Pinned(std::vector<T> values) : values_(std::move(values)) {
    expect_ok(cudaHostRegister(values_.data(), size_bytes(), cudaHostRegisterPortable));
  }
  ~Pinned() { expect_ok(cudaHostUnregister(values_.data())); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  T* data() { return values_.data(); }
  std::size_t size_bytes() const { return values_.size() * sizeof(T); }
  std::vector<T>& values() { return values_; }

 private:
  std::vector<T> values_;
};

inline cudaError_t add_one(cudaStream_t stream, float* data, std::size_t count) {
  const Bytes size{count * sizeof(float)};
  const Access accesses[] = {{data, size, false}, {data, size, true}};
  return launch(stream, accesses, [data, count] {
    float* const here = host_view(data);
    for (std::size_t i = 0; i < count; ++i) here[i] += 1;
  });
}

// Copies device memory to the host, in stream order, and waits.
template <class T>
std::vector<T> download(cudaStream_t stream, const T* data, std::size_t count) {
  Pinned<T> host{std::vector<T>(count)};
  expect_ok(cudaMemcpyAsync(host.data(), data, host.size_bytes(), cudaMemcpyDeviceToHost, stream));
  expect_ok(cudaStreamSynchronize(stream));
  return host.values();
}

template <class T>
void upload(cudaStream_t stream, T* data, std::vector<T> values) {
  Pinned<T> host(std::move(values));
  expect_ok(cudaMemcpyAsync(data, host.data(), host.size_bytes(), cudaMemcpyHostToDevice, stream));
  expect_ok(cudaStreamSynchronize(stream));
}

}  // namespace strata::test::standin
