// A bar chart for a terminal, drawn with the block characters of Unicode (U+2588 to U+258F) to an
// eighth of a column. Pure; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace strata::tool {

struct Bar {
  std::string label;  // ASCII
  double value = 0;   // at least 0
};

// One line for each bar: label, bar, value with `decimals` digits and `unit`. The longest bar is as
// long as `columns` allow; the others are in proportion.
std::string draw_bars(std::span<const Bar> bars, const std::string& unit, int decimals,
                      std::size_t columns);

}  // namespace strata::tool
