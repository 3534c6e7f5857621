// What `strata bench optim` will measure: the kernels, the elements that memory allows, the
// rounds. Pure except for available_memory(); any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/element_ops.hpp"
#include "strata/types.hpp"

namespace strata::tool {

struct BenchOptimOptions {
  std::optional<std::uint64_t> params;  // none: as memory allows
  unsigned threads = 0;                 // 0: all allowed CPUs
  unsigned rounds = 9;
  // The paced disk copies what it moves, 24 bytes for each parameter, and workers compute checksums
  // of as many: together several times the kernel's work, which must not become the bottleneck.
  double disk_times = 8;
  std::string json;  // empty: none
};

// One rule over one choice of types.
struct KernelCase {
  UpdateRule rule = UpdateRule::adamw;
  DType gradient = DType::bf16;
  DType weights = DType::fp32;
  DType moments = DType::fp32;
  std::optional<DType> param = DType::bf16;  // none: the weights are the parameters

  DType param_type() const { return param.value_or(weights); }
  // Read and written, for one parameter.
  Bytes bytes_per_param() const;
  // Passes over the arrays that the same update takes when each of its parts is one: widening the
  // gradient, unscaling it, the rule on fp32, narrowing the parameter.
  unsigned passes() const;
};

struct BenchOptimPlan {
  std::vector<KernelCase> cases;
  std::uint64_t params = 0;
  std::uint64_t streamed_params = 0;  // of the session on the paced disk
  unsigned threads = 0;
  unsigned rounds = 0;
  double disk_times = 0;  // time of the paced disk / time of the kernel

  Bytes array_bytes() const;  // of all arrays together
};

// Elements that a thread takes at once.
inline constexpr std::uint64_t kChunkElems = 4 * kBlockElems;

// Throws Error(invalid_argument) when an option is impossible, Error(budget_exceeded) when the
// arrays are more than `available`.
BenchOptimPlan make_bench_optim_plan(const BenchOptimOptions& options, Bytes available);

// What the kernel could give a new program, and a limit of the control group if that is less.
// Throws Error(io). Blocks: on /proc.
Bytes available_memory();

}  // namespace strata::tool
