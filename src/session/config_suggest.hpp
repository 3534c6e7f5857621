// Help for a misspelt key. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace strata::config {

// The fewest insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`
// with no character edited twice (the optimal string alignment distance).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The valid path that `path` was probably meant to be: a misspelling of it, or the right name in
// the wrong section. Empty when none is plausibly near.
std::string nearest_path(std::string_view path);

}  // namespace strata::config
