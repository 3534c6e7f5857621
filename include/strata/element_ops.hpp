// Element-wise work on shards: what the library computes besides moving bytes. Each op is a plain
// description that a device runs on a stream (Device::element_op) or a worker runs on host memory
// (run_on_host); both compile the same element source, so the bits do not depend on where a shard
// lives (docs/determinism.md). Pointers are borrowed until the op has run.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "strata/types.hpp"

namespace strata {

// Elements per canonical sum block. Sums over a shard are fp64 within a block, then over blocks in
// order, then over ranks in order, so that they do not depend on threads or placement.
inline constexpr std::uint64_t kBlockElems = 65536;

// accumulator[i] (+)= gradient[i] in fp32.
struct AccumulateOp {
  float* accumulator = nullptr;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::bf16;
  std::uint64_t count_elems = 0;
  bool overwrite = false;  // true for the first contribution: `=` instead of `+=`
};

// block_sums[b] = sum of gradient[i]^2 over block b in fp64; *nonfinite |= any inf or NaN.
// `gradient` starts at a block border of its shard; the last block may be short.
struct GradientStatsOp {
  const void* gradient = nullptr;
  DType gradient_dtype = DType::bf16;
  std::uint64_t count_elems = 0;
  double* block_sums = nullptr;        // ceil(count_elems / kBlockElems) values
  std::uint32_t* nonfinite = nullptr;  // one flag; only this op may touch it while it runs
};

// What AdamW needs to know for one run of elements with the same hyperparameters.
// Loshchilov & Hutter, "Decoupled Weight Decay Regularization", algorithm 2, with the bias
// correction of Kingma & Ba folded into step_size and second_scale as torch.optim.AdamW does:
//   g = gradient * gradient_factor
//   m = m + (1 - beta1) * (g - m)            v = beta2 * v + (1 - beta2) * g * g
//   w = w * decay_factor - step_size * m / (sqrt(v) * second_scale + epsilon)
// decay_factor = 1 - lr * weight_decay, step_size = lr / (1 - beta1^t),
// second_scale = 1 / sqrt(1 - beta2^t), t = 1, 2, ...; all three are computed in fp64 and rounded.
struct AdamWCoefficients {
  float gradient_factor = 1;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float decay_factor = 1;
  float step_size = 0;
  float second_scale = 1;
};

// One contiguous run of a tile: elements [begin, begin + count) of every array below.
struct AdamWRun {
  std::uint64_t begin_elems = 0;
  std::uint64_t count_elems = 0;
  AdamWCoefficients coefficients;
};

// Updates master, moment1 and moment2 in place and writes the rounded weight to `param`.
// Elements outside `runs` (padding, absent tensors) are not touched.
struct AdamWOp {
  const void* gradient = nullptr;
  DType gradient_dtype = DType::bf16;
  float* master = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  void* param = nullptr;  // may be null: the master is the parameter
  DType param_dtype = DType::bf16;
  std::uint64_t count_elems = 0;  // of the whole tile
  std::vector<AdamWRun> runs;
};

// to[i] = from[i], converted with one rounding to nearest even. The arrays do not overlap.
struct ConvertOp {
  void* to = nullptr;
  DType to_dtype = DType::bf16;
  const void* from = nullptr;
  DType from_dtype = DType::fp32;
  std::uint64_t count_elems = 0;
};

using ElementOp = std::variant<AccumulateOp, GradientStatsOp, AdamWOp, ConvertOp>;

// Runs `op` on the calling thread over host-addressable memory. Blocks until done.
void run_on_host(const AccumulateOp& op);
void run_on_host(const GradientStatsOp& op);
void run_on_host(const AdamWOp& op);
void run_on_host(const ConvertOp& op);
void run_on_host(const ElementOp& op);

// Copies with conversion, round to nearest even. Blocks until done; host memory only.
void convert(void* dst, DType dst_dtype, const void* src, DType src_dtype, std::uint64_t count);

}  // namespace strata
