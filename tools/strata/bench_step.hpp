// `strata bench step`: the same training step with its states resident, with look-ahead 0 and with
// the schedule, beside the times that the machine's rates allow.
#pragma once

#include <CLI/App.hpp>
#include <cstdio>

namespace strata::tool {

// Adds `step` below `bench`. `out` receives what it prints and stays open until the app has run.
// Running it throws Interrupted when a signal ended it.
void add_bench_step(CLI::App& bench, std::FILE* out);

}  // namespace strata::tool
