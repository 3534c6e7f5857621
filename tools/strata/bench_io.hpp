// `strata bench io`: measures the NVMe tier through the library's own store, beside a loop that
// does nothing but I/O.
#pragma once

#include <CLI/App.hpp>
#include <cstdio>

namespace strata::tool {

// Adds `io` below `bench`. `out` receives what it prints and stays open until the app
// has run. Running it throws Interrupted when a signal ended it.
void add_bench_io(CLI::App& bench, std::FILE* out);

}  // namespace strata::tool
