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

cudaError_t enter(int device) {
  int current = 0;
  const cudaError_t result = cudaGetDevice(&current);
  return result != cudaSuccess || current == device ? result : cudaSetDevice(device);
}

}  // namespace strata::cuda
