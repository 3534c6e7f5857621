#include "bar_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace strata::tool {
namespace {

constexpr std::size_t kEighths = 8;
// What is left over behind the whole blocks, in eighths of a column.
constexpr std::array<std::string_view, kEighths> kPartial{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};

// `length` in eighths of a column, padded with spaces to `columns`.
std::string draw_bar(std::size_t length, std::size_t columns) {
  std::string bar;
  for (std::size_t i = 0; i < length / kEighths; ++i) bar += "█";
  bar += kPartial[length % kEighths];
  const std::size_t used = (length + kEighths - 1) / kEighths;
  return bar + std::string(columns - used, ' ');
}

}  // namespace

std::string draw_bars(std::span<const Bar> bars, const std::string& unit, int decimals,
                      std::size_t columns) {
  std::size_t label_columns = 0;
  std::size_t value_columns = 0;
  double most = 0;
  for (const Bar& bar : bars) {
    label_columns = std::max(label_columns, bar.label.size());
    value_columns = std::max(value_columns, fmt::format("{:.{}f}", bar.value, decimals).size());
    most = std::max(most, bar.value);
  }
  const std::size_t around = label_columns + value_columns + unit.size() + 3;
  const std::size_t bar_columns = columns > around ? columns - around : 1;
  std::string text;
  for (const Bar& bar : bars) {
    const double share = most > 0 ? bar.value / most : 0;
    const auto eighths =
        static_cast<std::size_t>(std::lround(share * static_cast<double>(bar_columns * kEighths)));
    text += fmt::format("{:<{}} {} {:>{}.{}f} {}\n", bar.label, label_columns,
                        draw_bar(eighths, bar_columns), bar.value, value_columns, decimals, unit);
  }
  return text;
}

}  // namespace strata::tool
