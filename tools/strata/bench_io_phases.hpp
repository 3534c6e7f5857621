// The order of the windows. Alternatives run in turn, window by window, since the rate of a disk
// drifts within seconds; who goes first changes from round to round.
#pragma once

#include <functional>

#include "bench_io_plan.hpp"
#include "bench_io_results.hpp"
#include "bench_io_rig.hpp"

namespace strata::tool {

// Runs all of the plan. `before_window` is called before each window and may throw to end it.
// Throws Error as the rig does. Blocks.
BenchIoResults measure(const BenchIoOptions& options, const BenchIoPlan& plan, BenchIoRig& rig,
                       const std::function<void()>& before_window);

}  // namespace strata::tool
