#include "layout/placement.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace strata {
namespace {

// Cuts shards by one kind's fractions; what rounding to blocks adds or leaves over at either cut is
// carried to the next shard.
class FractionCutter {
 public:
  // Without an nvme part the second cut is the shard's end exactly: sums of fractions are not.
  explicit FractionCutter(const TierFractions& fractions)
      : upto_{fractions.device, fractions.nvme > 0 ? fractions.device + fractions.host : 1.0} {}

  // End of the device part, and of the device and host parts together.
  std::array<std::uint64_t, 2> cut(std::uint64_t shard_elems) {
    std::array<std::uint64_t, 2> ends{};
    for (std::size_t i = 0; i < ends.size(); ++i) {
      owed_[i] += upto_[i] * static_cast<double>(shard_elems);
      ends[i] = nearest_border(owed_[i], shard_elems);
    }
    ends[1] = std::max(ends[0], ends[1]);
    for (std::size_t i = 0; i < ends.size(); ++i) owed_[i] -= static_cast<double>(ends[i]);
    return ends;
  }

 private:
  // The block border, or the shard's end, that is nearest to `wanted`.
  static std::uint64_t nearest_border(double wanted, std::uint64_t shard_elems) {
    if (wanted <= 0) return 0;
    if (wanted >= static_cast<double>(shard_elems)) return shard_elems;
    const std::uint64_t low = static_cast<std::uint64_t>(wanted) / kBlockElems * kBlockElems;
    const std::uint64_t high = std::min(low + kBlockElems, shard_elems);
    return wanted - static_cast<double>(low) < static_cast<double>(high) - wanted ? low : high;
  }

  std::array<double, 2> upto_;
  std::array<double, 2> owed_{};
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
