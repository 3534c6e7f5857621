#include <cstdint>
#include <variant>

#include "base/element_bodies.hpp"
#include "cuda/kernels.hpp"

namespace strata::cuda {
namespace {

constexpr unsigned kThreads = 256;
// Enough blocks to fill any GPU; the threads stride over what is left.
constexpr std::uint64_t kMostBlocks = 4096;

template <class Body>
__global__ void __launch_bounds__(kThreads)
    for_each_element(Body body, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = begin + std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end;
       i += stride) {
    body(i);
  }
}

// Sixteen threads per canonical block: neighbouring threads read neighbouring elements.
template <class Body>
__global__ void __launch_bounds__(kThreads) sum_blocks(Body body, std::uint64_t blocks) {
  constexpr unsigned kLanes = element::kSumLanes;
  constexpr unsigned kBlocks = kThreads / kLanes;
  __shared__ double lanes[kBlocks][kLanes];
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned slot = threadIdx.x / kLanes;
  const std::uint64_t block = std::uint64_t{blockIdx.x} * kBlocks + slot;
  std::uint32_t bad = 0;
  if (block < blocks) lanes[slot][lane] = body.lane(block, lane, &bad);
  __syncthreads();
  if (bad != 0) atomicOr(body.nonfinite, 1U);
  if (block < blocks && lane == 0) body.finish(block, lanes[slot]);
}

// The launch's own result: not one that another call left on this thread.
template <class Body, class... Count>
cudaError_t start(void (*kernel)(Body, Count...), std::uint64_t grid, cudaStream_t stream,
                  const Body& body, Count... counts) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, body, counts...);
}

cudaError_t launch(const GradientStatsOp& op, cudaStream_t stream) {
  cudaError_t result = cudaSuccess;
  element::with_block_sums(op, [&]<class Body>(const Body& body, std::uint64_t blocks) {
    if (blocks == 0) return;
    constexpr std::uint64_t kBlocks = kThreads / element::kSumLanes;
    result = start(sum_blocks<Body>, (blocks + kBlocks - 1) / kBlocks, stream, body, blocks);
  });
  return result;
}

template <class Op>
cudaError_t launch_bodies(const Op& op, cudaStream_t stream) {
  cudaError_t result = cudaSuccess;
  const auto visit = [&]<class Body>(const Body& body, std::uint64_t begin, std::uint64_t end) {
    if (begin == end || result != cudaSuccess) return;
    const std::uint64_t blocks = (end - begin + kThreads - 1) / kThreads;
    result = start(for_each_element<Body>, blocks < kMostBlocks ? blocks : kMostBlocks, stream,
                   body, begin, end);
  };
  element::for_each_body(op, visit);
  return result;
}

cudaError_t launch(const AccumulateOp& op, cudaStream_t stream) {
  const cudaError_t result = launch_bodies(op, stream);
  return result == cudaSuccess ? launch(element::sums_of(op), stream) : result;
}

cudaError_t launch(const UpdateOp& op, cudaStream_t stream) { return launch_bodies(op, stream); }

cudaError_t launch(const ConvertOp& op, cudaStream_t stream) { return launch_bodies(op, stream); }

// Adds up results: the first that is no success stays.
template <class Kernel>
void load(Kernel* kernel, cudaError_t& result) {
  cudaFuncAttributes attributes{};
  const cudaError_t one = cudaFuncGetAttributes(&attributes, kernel);
  if (result == cudaSuccess) result = one;
}

template <class Op>
void load_for_each(const Op& op, cudaError_t& result) {
  element::for_each_body(op, [&]<class Body>(const Body&, std::uint64_t, std::uint64_t) {
    load(for_each_element<Body>, result);
  });
}

}  // namespace

cudaError_t load_kernels() {
  constexpr DType kDTypes[] = {DType::fp32, DType::bf16, DType::fp16};
  cudaError_t result = cudaSuccess;
  for (const DType a : kDTypes) {
    load_for_each(AccumulateOp{.gradient_dtype = a}, result);
    element::with_block_sums(
        GradientStatsOp{.gradient_dtype = a},
        [&]<class Body>(const Body&, std::uint64_t) { load(sum_blocks<Body>, result); });
    for (const DType b : kDTypes) {
      load_for_each(ConvertOp{.to_dtype = a, .from_dtype = b}, result);
    }
  }
  for (const UpdateRule rule : kUpdateRules) {
    load_for_each(UpdateOp{.rule = rule, .runs = {UpdateRun{}}}, result);
  }
  return result;
}

cudaError_t launch_element_op(const ElementOp& op, cudaStream_t stream) {
  return std::visit([&](const auto& one) { return launch(one, stream); }, op);
}

}  // namespace strata::cuda
