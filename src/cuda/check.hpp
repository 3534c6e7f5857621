// The one place that turns a result of the CUDA runtime into an Error, and the guard by which
// every call runs on its own device whatever the calling thread has chosen.
// Thread: any.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "strata/error.hpp"

namespace strata::cuda {

// "cudaMalloc failed: out of memory (cudaErrorMemoryAllocation)". Takes the error off the thread,
// so that the program's own cudaGetLastError() does not meet it.
Error error_of(cudaError_t result, std::string_view call);

// Throws error_of() unless `result` is cudaSuccess.
void check(cudaError_t result, std::string_view call);

// Makes a device the thread's current one, and gives the thread its own back.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  // The result of the switch; nothing was called if it failed.
  cudaError_t result() const { return result_; }

 private:
  int before_ = 0;
  bool switched_ = false;
  cudaError_t result_ = cudaSuccess;
};

}  // namespace strata::cuda
