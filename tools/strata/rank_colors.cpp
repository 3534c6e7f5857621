#include "rank_colors.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace strata::tool {
namespace {

// After Okabe and Ito, "Color Universal Design" (2008), lightened.
constexpr std::array<std::string_view, 8> kFew{"#8ec9ee", "#f6c565", "#7fd1b3", "#ef9f78",
                                               "#d9a9cf", "#f3ea7c", "#9fb2e8", "#c5c9cf"};

// Hue in sixths of the circle; neighbours alternate in lightness so that their border shows.
std::string from_hue(double hue, bool lighter) {
  const auto channel = [&](double shift) {
    double h = hue + shift;
    while (h >= 6) h -= 6;
    const double ramp = h < 1 ? h : h < 3 ? 1 : h < 4 ? 4 - h : 0;
    const double low = lighter ? 175 : 130;
    return static_cast<unsigned>(low + (245 - low) * ramp);
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(2), channel(0), channel(4));
}

}  // namespace

RankColors::RankColors(std::uint32_t ranks) {
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (ranks <= kFew.size()) {
      colors_.emplace_back(kFew[r]);
    } else {
      colors_.push_back(from_hue(6.0 * r / ranks, r % 2 == 0));
    }
  }
}

}  // namespace strata::tool
