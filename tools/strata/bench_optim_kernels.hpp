// Kernels beside loops that only move their bytes, and beside the same update in passes: all on the
// same arrays, by the same threads in the same chunks, one after the other in every round.
//
// Ownership: the arrays. Thread: one at a time.
#pragma once

#include <functional>
#include <string>

#include "bench_optim_plan.hpp"
#include "bench_optim_results.hpp"
#include "bench_optim_streams.hpp"
#include "memory/region.hpp"
#include "thread_team.hpp"

namespace strata::tool {

class BenchOptimKernels {
 public:
  // Called between measurements; may throw to end them.
  using Check = std::function<void()>;

  // Takes the memory. Throws Error(budget_exceeded).
  BenchOptimKernels(const BenchOptimPlan& plan, ThreadTeam& team);

  // Blocks: seconds.
  Spread measure_bandwidth(const Check& check);
  KernelResult measure(const KernelCase& what, const Check& check);
  // Seconds of AdamW in the engine's default types over the first `params`, a tile at a time.
  double measure_tiles(std::uint64_t params, std::uint64_t tile_elems, const Check& check);

  Bytes page_size() const { return region_.page_size(); }

 private:
  struct Arrays {
    std::byte* gradient;
    std::byte* widened;
    std::byte* weights;
    std::byte* moments[2];
    std::byte* param;
  };

  Arrays carve() const;
  UpdateOp op_of(const KernelCase& what) const;
  void fill(const UpdateOp& op);
  void fill_array(void* array, DType dtype, double scale, bool positive);
  double run_kernel(const UpdateOp& op);
  double run_stream(const UpdateOp& op);
  double run_passes(const UpdateOp& op);

  const BenchOptimPlan& plan_;
  ThreadTeam& team_;
  const HostRegion region_;
  const Arrays arrays_;
};

}  // namespace strata::tool
