// Loads and launches the kernels of element ops. Declared apart from its implementation, which only
// the compiler of the GPU can read. Results are those of the runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "strata/element_ops.hpp"

namespace strata::cuda {

// Loads every kernel on the current device. CUDA loads a kernel at its first launch otherwise, and
// may wait for all running work to do so: for a collective that waits for a peer, too ("Lazy
// Loading", CUDA C++ Programming Guide). Blocks.
cudaError_t load_kernels();

// Pre: `op` passed its checks, all its pointers are device memory of the current device, and
// `stream` is one of its streams. Does not block.
cudaError_t launch_element_op(const ElementOp& op, cudaStream_t stream);

}  // namespace strata::cuda
