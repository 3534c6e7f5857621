// `strata inspect`: shows what the library would do with a model, without running anything.
#pragma once

#include <CLI/App.hpp>
#include <cstdio>

namespace strata::tool {

// Adds the subcommand. `out` receives what it prints and stays open until the app has run.
void add_inspect(CLI::App& app, std::FILE* out);

}  // namespace strata::tool
