// Borrowed views of the tensors that a gather or a gradient lease lends. Values; they own nothing.
#pragma once

#include <cstdint>

#include "strata/types.hpp"

namespace train_gpt {

// A parameter tensor as it is stored: (rows, cols) in row order, or (rows, 1) for a norm.
struct WeightView {
  const void* data = nullptr;
  strata::DType dtype = strata::DType::fp32;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
};

// The gradient of a tensor of the same shape. Kernels add to it: read, add in fp32, round.
// A null pointer stands for a frozen tensor; its gradient is not computed.
struct GradView {
  void* data = nullptr;
  strata::DType dtype = strata::DType::fp32;
};

}  // namespace train_gpt
