// `strata bench optim`: the rates and errors of the update kernels, and of the update of a session
// whose states rest on a disk.
#pragma once

#include <CLI/App.hpp>
#include <cstdio>

namespace strata::tool {

// Adds `optim` below `bench`. `out` receives what it prints and stays open until the app has run.
// Running it throws Interrupted when a signal ended it.
void add_bench_optim(CLI::App& bench, std::FILE* out);

}  // namespace strata::tool
