// Launches the kernel of an element op. Declared apart from its implementation, which only the
// compiler of the GPU can read.
// Pre: `op` passed its checks, all its pointers are device memory of the current device, and
// `stream` is one of its streams. Does not block; returns what the launch returned.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/element_ops.hpp"

namespace strata::cuda {

cudaError_t launch_element_op(const ElementOp& op, cudaStream_t stream);

}  // namespace strata::cuda
