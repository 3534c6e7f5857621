// The results of `strata bench optim` for people (80 columns) and for programs. Pure; any thread.
#pragma once

#include <string>

#include "bench_optim_plan.hpp"
#include "bench_optim_results.hpp"

namespace strata::tool {

std::string bench_optim_announcement(const BenchOptimPlan& plan);

std::string bench_optim_text(const BenchOptimPlan& plan, const BenchOptimResults& results);

// One JSON object. Rates per second; a figure with a spread has "<name>" (the median) and
// "<name>_80", the 10th and 90th percentile.
std::string bench_optim_json(const BenchOptimPlan& plan, const BenchOptimResults& results);

// The largest of them.
const StateError& worst_of(const KernelResult& result);

}  // namespace strata::tool
