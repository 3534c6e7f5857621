// The memory floor: sizes of everything a session holds, from the layout and the placement alone.
// The engine allocates by these figures, so what is proven is what is used. Pure.
#pragma once

#include "layout/layout.hpp"
#include "layout/placement.hpp"
#include "layout/state_table.hpp"
#include "strata/memory_plan.hpp"

namespace strata {

// Slabs of one tile that each staging class owns for itself; classes never lend their minimum.
struct StagingPlan {
  Bytes slab;
  std::uint32_t gather = 0;
  std::uint32_t gradient = 0;
  std::uint32_t update = 0;
  std::uint32_t checkpoint = 0;  // initialize, read, export

  std::uint32_t total() const { return gather + gradient + update + checkpoint; }
};

// Tiles of one class that are in flight at once: reading, computing, writing.
inline constexpr std::uint32_t kTilesInFlight = 3;
// Pieces of device and host memory are rounded up to this (see memory/region.hpp).
inline constexpr Bytes kPieceRounding{256};
// Extents are rounded up to this (see memory/extent_store.hpp).
inline constexpr Bytes kExtentRounding{4096};

// Whether the update of a tile runs on the device: all its kinds rest there.
bool updates_on_device(const Tile& tile, const StateTable& table);
// Slabs that the update of a tile needs when it runs on the host.
std::uint32_t update_slabs(const Tile& tile, const StateTable& table);
// Slabs that adding one reduced gradient to a tile needs.
std::uint32_t gradient_slabs(const Tile& tile, const StateTable& table);

// Device bytes of a gathered unit and of its gradient buffer: N shards of every segment (of every
// trainable one).
Bytes gathered_bytes(const Layout& layout, const StateTable& table, UnitId unit);
Bytes gradient_bytes(const Layout& layout, const StateTable& table, UnitId unit);

// Bytes of a tile's kind at rest, rounded as its tier asks.
Bytes rest_bytes(const Tile& tile, KindId kind, const StateTable& table);

// Canonical sums of a tile's gradient: one fp64 per block, then the flag of GradientStatsOp. They
// rest on the host; tiles whose gradient rests on the device compute them there first.
inline std::uint64_t blocks_of(const Tile& tile) {
  return (tile.count_elems + kBlockElems - 1) / kBlockElems;
}
Bytes gradient_sums_bytes(const Tile& tile);
Bytes all_gradient_sums_bytes(const Layout& layout, const Placement& placement, Tier tier);

StagingPlan plan_staging(const Layout& layout, const StateTable& table, const Placement& placement,
                         std::uint64_t tile_elems);

// Device buffers beside those of the floor, so that gathers and reductions run ahead of the calls.
struct LookAheadBuffers {
  std::uint32_t gathers = 0;
  std::uint32_t gradients = 0;
};

struct MemoryExtras {
  Bytes device_scratch;
  Bytes host_scratch;
  Bytes communicator_staging;
  ActivationNeeds activations;
};

// `budgets` are this rank's, by tier.
MemoryPlan plan_memory(const Layout& layout, const StateTable& table, const Placement& placement,
                       const Config& config, const std::array<Bytes, kTierCount>& budgets,
                       const MemoryExtras& extras);

// What config.engine.look_ahead asks for, as far as half of what `floor` leaves of the device's
// budget holds it; the other half is for what the program has not declared.
LookAheadBuffers affordable_look_ahead(const Layout& layout, const StateTable& table,
                                       const Config& config, const MemoryPlan& floor);
// Adds them to the lines of `plan`.
void add_look_ahead(MemoryPlan& plan, const Layout& layout, const StateTable& table,
                    const LookAheadBuffers& buffers);

}  // namespace strata
