// The `strata` program as a function, so that tests can call it.
#pragma once

#include <cstdio>

namespace strata::tool {

// Runs the command line; prints results to `out`, and errors in one line to `err`. Returns the exit
// code: 0, 2 when the command line, a file or a value in it is wrong, or 130 when a signal ended
// it. Does not throw.
int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err);

}  // namespace strata::tool
