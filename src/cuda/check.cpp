#include "cuda/check.hpp"

#include <fmt/format.h>

namespace strata::cuda {

Error error_of(cudaError_t result, std::string_view call) {
  [[maybe_unused]] const cudaError_t taken = cudaGetLastError();
  return Error(ErrorCode::device,
               fmt::format("{} failed: {} ({})", call, cudaGetErrorString(result),
                           cudaGetErrorName(result)));
}

void check(cudaError_t result, std::string_view call) {
  if (result != cudaSuccess) throw error_of(result, call);
}

OnDevice::OnDevice(int device) {
  result_ = cudaGetDevice(&before_);
  if (result_ != cudaSuccess || before_ == device) return;
  result_ = cudaSetDevice(device);
  switched_ = result_ == cudaSuccess;
}

OnDevice::~OnDevice() {
  // Nobody to tell: the device that the thread had before has failed, and its owner will see it.
  if (switched_) [[maybe_unused]]
    const cudaError_t result = cudaSetDevice(before_);
}

}  // namespace strata::cuda
