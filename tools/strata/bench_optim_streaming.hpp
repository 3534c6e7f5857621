// The update of a whole session whose optimizer states rest on a disk: how near it comes to what
// the disk alone, or the kernel alone, would take. The disk is in memory and takes declared time
// (paced/paced_disk.hpp), because a real one's rate swings tenfold within minutes.
// Thread: one at a time.
#pragma once

#include <functional>

#include "bench_optim_plan.hpp"
#include "bench_optim_results.hpp"

namespace strata::tool {

// Elements of an engine tile in the measured session: that of engine.tile's default.
inline constexpr std::uint64_t kStreamedTileElems = 1 << 20;

// `kernel_seconds`: what plan.threads take to update plan.streamed_params in memory, in tiles. The
// disk is declared to take plan.disk_times as long for what an update reads and writes. Parameters
// and gradients rest on the host. Throws Error as Session::open does, and what `check` throws,
// which is called between steps. Blocks.
StreamingResult measure_streaming(const BenchOptimPlan& plan, double kernel_seconds,
                                  const std::function<void()>& check);

}  // namespace strata::tool
