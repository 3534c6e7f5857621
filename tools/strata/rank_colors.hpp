// Light fills that dark text can stand on, one per rank: a fixed set for up to eight ranks, which
// stay distinct for most colour-blind readers, and steps of hue beyond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace strata::tool {

class RankColors {
 public:
  explicit RankColors(std::uint32_t ranks);
  const std::string& operator[](std::size_t rank) const { return colors_[rank]; }

 private:
  std::vector<std::string> colors_;
};

}  // namespace strata::tool
