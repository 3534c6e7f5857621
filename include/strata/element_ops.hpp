// Element-wise work on shards: what the library computes besides moving bytes. Each op is a plain
// description that a device runs on a stream (Device::element_op) or a worker runs on host memory
// (run_on_host); both compile the same element source, so the bits do not depend on where a shard
// lives (docs/determinism.md). Pointers are borrowed until the op has run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "strata/types.hpp"

namespace strata {

// Elements per canonical sum block. Sums over a shard are fp64 within a block, then over blocks in
// order, then over ranks in order, so that they do not depend on threads or placement.
inline constexpr std::uint64_t kBlockElems = 65536;

// accumulator[i] (+)= gradient[i] in fp32. With `block_sums`, the sums of the result as well, which
// GradientStatsOp describes, from the same pass.
struct AccumulateOp {
  float* accumulator = nullptr;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::bf16;
  std::uint64_t count_elems = 0;
  bool overwrite = false;              // true for the first contribution: `=` instead of `+=`
  double* block_sums = nullptr;        // may be null
  std::uint32_t* nonfinite = nullptr;  // set when block_sums is
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

// What an optimizer does to one element, with w the weight, m1 and m2 its moments in the order of
// moments_of(), and the names of UpdateCoefficients.
//
//   adamw     g = gradient * factor                  Loshchilov & Hutter, "Decoupled Weight Decay
//             m1 += blend1 * (g - m1)                Regularization", algorithm 2, with Kingma &
//             m2 += blend2 * (g * g - m2)            Ba's bias correction in the scalars
//             w  -= decay * w
//             w  -= step * m1 / (sqrt(m2) * second_scale + epsilon)
//   adam      g = gradient * factor + decay * w      Kingma & Ba, "Adam", algorithm 1, with L2
//             then as adamw without its decay        regularization as torch.optim.Adam has it
//   sgd       g as adam;  w -= step * g
//   momentum  g as adam;  m1 = momentum * m1 + g;  w -= step * m1       (torch.optim.SGD)
//   nesterov  g, m1 as momentum;  w -= step * (g + momentum * m1)
//   adagrad   g as adam;  m1 += g * g;  w -= step * g / (sqrt(m1) + epsilon)
//             Duchi, Hazan & Singer, "Adaptive Subgradient Methods", diagonal, as torch has it
//   lion      g = gradient * factor                  Chen et al., "Symbolic Discovery of
//             u = m1 + blend1 * (g - m1)             Optimization Algorithms", program 1
//             w -= decay * w;  w -= step * sign(u)
//             m1 += blend2 * (g - m1)
enum class UpdateRule : std::uint8_t { adamw, adam, sgd, momentum, nesterov, adagrad, lion };
inline constexpr std::array kUpdateRules = {
    UpdateRule::adamw,    UpdateRule::adam,    UpdateRule::sgd, UpdateRule::momentum,
    UpdateRule::nesterov, UpdateRule::adagrad, UpdateRule::lion};
std::string_view name_of(UpdateRule rule);
// Moments that a rule keeps for every element: 0, 1 or 2.
std::size_t moments_of(UpdateRule rule);

// The scalars of one step, each computed in fp64 and rounded once (optim/optimizer.hpp).
struct UpdateCoefficients {
  float factor = 1;       // gradient_scale x clip factor / loss scale
  float decay = 0;        // adamw, lion: learning rate x weight decay; the others: weight decay
  float blend1 = 0.1F;    // 1 - beta1
  float blend2 = 0.001F;  // 1 - beta2
  float momentum = 0;
  float epsilon = 1e-8F;
  float step = 0;          // learning rate, with its bias correction
  float second_scale = 1;  // 1 / sqrt(1 - beta2^t)
};

// One contiguous run of a tile: elements [begin, begin + count) of every array below.
struct UpdateRun {
  std::uint64_t begin_elems = 0;
  std::uint64_t count_elems = 0;
  UpdateCoefficients coefficients;
};

// Updates weights and moments in place and writes the rounded weight to `param`. The arithmetic is
// fp32; what rests in 16 bits is widened before and rounded to nearest even after. Elements outside
// `runs` (padding, absent tensors) are not touched.
struct UpdateOp {
  UpdateRule rule = UpdateRule::adamw;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::bf16;
  void* weights = nullptr;  // the masters, or parameters that are their own masters
  DType weights_dtype = DType::fp32;
  std::array<void*, 2> moments = {};  // the first moments_of(rule)
  DType moments_dtype = DType::fp32;  // fp32 or bf16
  void* param = nullptr;              // 16 bits; null: the weights are the parameters
  DType param_dtype = DType::bf16;    // Pre: weights_dtype is fp32 when `param` is set
  std::uint64_t count_elems = 0;      // of the whole tile
  std::vector<UpdateRun> runs;        // in ascending order, disjoint
};

// Dies when the op breaks a condition above. Devices and run_on_host() call it.
void check(const UpdateOp& op);

// to[i] = from[i], converted with one rounding to nearest even. The arrays do not overlap.
struct ConvertOp {
  void* to = nullptr;
  DType to_dtype = DType::bf16;
  const void* from = nullptr;
  DType from_dtype = DType::fp32;
  std::uint64_t count_elems = 0;
};

using ElementOp = std::variant<AccumulateOp, GradientStatsOp, UpdateOp, ConvertOp>;

// Runs `op` on the calling thread over host-addressable memory. Blocks until done.
void run_on_host(const AccumulateOp& op);
void run_on_host(const GradientStatsOp& op);
void run_on_host(const UpdateOp& op);
void run_on_host(const ConvertOp& op);
void run_on_host(const ElementOp& op);
// The same for elements [begin, end) of the tile only. Pre: begin is a multiple of 64.
void run_on_host(const UpdateOp& op, std::uint64_t begin_elems, std::uint64_t end_elems);

// Copies with conversion, round to nearest even. Blocks until done; host memory only.
void convert(void* dst, DType dst_dtype, const void* src, DType src_dtype, std::uint64_t count);

}  // namespace strata
