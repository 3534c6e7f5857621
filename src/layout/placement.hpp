// Where shards rest. Each shard is cut into tiles: element ranges in which every state kind has
// exactly one home, at most `tile_elems` long, beginning at a block border. A tile is what one
// I/O, one checksum and one update cover. Fractions are met over the whole model: what rounding
// to blocks leaves over in one shard is carried to the next. Equal on all ranks. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "layout/layout.hpp"
#include "layout/state_table.hpp"
#include "strata/config.hpp"
#include "strata/element_ops.hpp"

namespace strata {

struct Tile {
  std::uint64_t begin_elems = 0;  // in the shard
  std::uint64_t count_elems = 0;
  std::array<Tier, kMaxKinds> homes{};  // by kind; only `param` counts in a frozen segment

  Tier home(KindId kind) const { return homes[kind.value]; }
};

struct Placement {
  std::vector<std::vector<Tile>> tiles;  // by segment

  // Kinds that a segment stores: all, or only `param` when it is frozen.
  static std::uint32_t kinds_of(const Segment& segment, const StateTable& table) {
    return segment.trainable ? static_cast<std::uint32_t>(table.size()) : 1;
  }
};

Placement make_placement(const Layout& layout, const StateTable& table,
                         const Config::Placement& fractions, std::uint64_t tile_elems);

// Parameters in a tier, as a share of all shard elements (padding included).
double share_of(const Layout& layout, const Placement& placement, KindId kind, Tier tier);

}  // namespace strata
