// The one place that turns a result of the CUDA runtime into an Error, and the choice of the device
// before each call.
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

// Makes `device` the thread's current one, and leaves it so: going back to the one before would
// make a context there (since CUDA 12 cudaSetDevice does), half a gigabyte on GPU 0 for each rank.
[[nodiscard]] cudaError_t enter(int device);

}  // namespace strata::cuda
