#include "layout/placement.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace strata {
namespace {

// Cuts shards by one kind's fractions; the remainder of each cut is carried to the next shard.
class FractionCutter {
 public:
  explicit FractionCutter(const TierFractions& fractions) : fractions_(fractions) {}

  // End of the device part and of the host part of a shard of `shard_elems`.
  std::array<std::uint64_t, 2> cut(std::uint64_t shard_elems) {
    const double size = static_cast<double>(shard_elems);
    device_owed_ += fractions_.device * size;
    host_owed_ += fractions_.host * size;
    const std::uint64_t device = nearest_border(device_owed_, shard_elems);
    const std::uint64_t host = nearest_border(host_owed_, shard_elems - device, device);
    device_owed_ -= static_cast<double>(device);
    host_owed_ -= static_cast<double>(host);
    return {device, device + host};
  }

 private:
  // The length nearest to `wanted` within `room` that ends at a block border or at the end.
  static std::uint64_t nearest_border(double wanted, std::uint64_t room, std::uint64_t base = 0) {
    if (wanted <= 0) return 0;
    const double block = static_cast<double>(kBlockElems);
    const auto whole = static_cast<std::uint64_t>(
        std::floor((static_cast<double>(base) + wanted) / block) * block);
    const std::uint64_t low = std::min(std::max(whole, base) - base, room);
    const std::uint64_t high = std::min(low + kBlockElems, room);
    return wanted - static_cast<double>(low) < static_cast<double>(high) - wanted ? low : high;
  }

  TierFractions fractions_;
  double device_owed_ = 0;
  double host_owed_ = 0;
};

Tier home_at(const std::array<std::uint64_t, 2>& cuts, std::uint64_t elem) {
  if (elem < cuts[0]) return Tier::device;
  return elem < cuts[1] ? Tier::host : Tier::nvme;
}

}  // namespace

Placement make_placement(const Layout& layout, const StateTable& table,
                         const Config::Placement& fractions, std::uint64_t tile_elems) {
  STRATA_ASSERT(tile_elems % kBlockElems == 0, "tiles end at block borders");
  STRATA_ASSERT(table.size() <= kMaxKinds, "too many state kinds");
  // param, grad, optimizer; with fp32 parameters the `param` row is the master too.
  std::array<FractionCutter, 3> cutters{FractionCutter(fractions.param),
                                        FractionCutter(fractions.grad),
                                        FractionCutter(fractions.optimizer)};
  Placement placement;
  for (const Segment& segment : layout.segments) {
    std::vector<std::array<std::uint64_t, 2>> cuts;
    std::vector<std::uint64_t> borders{0, segment.shard_elems};
    const std::size_t groups = segment.trainable ? cutters.size() : 1;
    for (std::size_t g = 0; g < groups; ++g) {
      cuts.push_back(cutters[g].cut(segment.shard_elems));
      borders.insert(borders.end(), cuts[g].begin(), cuts[g].end());
    }
    for (std::uint64_t at = tile_elems; at < segment.shard_elems; at += tile_elems) {
      borders.push_back(at);
    }
    std::ranges::sort(borders);
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::vector<Tile>& tiles = placement.tiles.emplace_back();
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      Tile tile{.begin_elems = borders[i], .count_elems = borders[i + 1] - borders[i]};
      for (std::uint32_t k = 0; k < Placement::kinds_of(segment, table); ++k) {
        tile.homes[k] = home_at(cuts[std::min<std::size_t>(k, 2)], borders[i]);
      }
      tiles.push_back(tile);
    }
  }
  return placement;
}

double share_of(const Layout& layout, const Placement& placement, KindId kind, Tier tier) {
  double here = 0;
  double all = 0;
  for (std::size_t s = 0; s < layout.segments.size(); ++s) {
    if (kind != kParamKind && !layout.segments[s].trainable) continue;
    for (const Tile& tile : placement.tiles[s]) {
      all += static_cast<double>(tile.count_elems);
      if (tile.home(kind) == tier) here += static_cast<double>(tile.count_elems);
    }
  }
  return all > 0 ? here / all : 0;
}

}  // namespace strata
