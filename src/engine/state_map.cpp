#include "engine/state_map.hpp"

#include <algorithm>

namespace strata {
namespace {

Bytes host_bytes(const StateGeometry& g) {
  Bytes sum = all_gradient_sums_bytes(g.layout, g.placement, Tier::host);
  for (std::size_t s = 0; s < g.layout.segments.size(); ++s) {
    const std::uint32_t kinds = Placement::kinds_of(g.layout.segments[s], g.table);
    for (const Tile& tile : g.placement.tiles[s]) {
      for (std::uint32_t k = 0; k < kinds; ++k) {
        if (tile.homes[k] == Tier::host) sum += rest_bytes(tile, KindId{k}, g.table);
      }
    }
  }
  sum += g.activations.count(Tier::host) * g.activations.piece();
  return sum;
}

std::vector<std::span<std::byte>> carve_slabs(Carver& carver, std::uint32_t count, Bytes size) {
  std::vector<std::span<std::byte>> slabs;
  for (std::uint32_t i = 0; i < count; ++i) slabs.push_back(carver.carve(size));
  return slabs;
}

TileSums carve_sums(Carver& carver, const Tile& tile) {
  auto* blocks = reinterpret_cast<double*>(carver.carve(gradient_sums_bytes(tile)).data());
  return {blocks, reinterpret_cast<std::uint32_t*>(blocks + blocks_of(tile))};
}

}  // namespace

StateMap::StateMap(const StateGeometry& g, Device& device, ExtentStore& store,
                   const Options& options)
    : device_(device),
      staging_region_((g.staging.total() + g.activations.staging) * g.staging.slab,
                      {.what = "staging memory",
                       .for_transfers = true,
                       .addresses_only = options.addresses_only,
                       .log = options.log}),
      host_(host_bytes(g), {.what = "states in host memory",
                            .addresses_only = options.addresses_only,
                            .log = options.log}),
      host_carver_(host_.memory()),
      device_carver_(device.arena()) {
  static_assert(kPieceAlign == kPieceRounding && kExtentAlign == kExtentRounding);
  Carver slabs(staging_region_.memory());
  staging_.gather = carve_slabs(slabs, g.staging.gather, g.staging.slab);
  staging_.gradient = carve_slabs(slabs, g.staging.gradient, g.staging.slab);
  staging_.update = carve_slabs(slabs, g.staging.update, g.staging.slab);
  staging_.checkpoint = carve_slabs(slabs, g.staging.checkpoint, g.staging.slab);
  staging_.activation = carve_slabs(slabs, g.activations.staging, g.staging.slab);
  for (std::uint32_t s = 0; s < g.layout.segments.size(); ++s) {
    const Segment& segment = g.layout.segments[s];
    std::vector<TileState>& tiles = tiles_.emplace_back();
    for (const Tile& tile : g.placement.tiles[s]) {
      tiles.push_back(
          place(s, tile, Placement::kinds_of(segment, g.table), segment.trainable, g.table, store));
    }
  }
  store.add_spares(options.spare_slots);  // of states only
  place_activations(g, store);
  at_rest_ = device.arena().first(device.arena().size() - device_carver_.left().value);
  gather_slots_ = carve_slabs(device_carver_, g.gather_slots(), g.gather_slot);
  gradient_slots_ = carve_slabs(device_carver_, 1 + g.look_ahead.gradients, g.gradient_slot);
  activation_slots_ = carve_slabs(device_carver_, g.activations.slots, g.activations.size);
  surplus_ = device.arena().last(device_carver_.left().value);
  for (const HostRegion* region : {&staging_region_, &host_}) {
    if (!region->memory().empty()) device_.register_host(region->memory());
  }
  if (!at_rest_.empty()) device_.note_lease(at_rest_);
}

void StateMap::place_activations(const StateGeometry& g, ExtentStore& store) {
  // Their own stream of extents, so that they too are dealt over all directories.
  const auto stream = static_cast<std::uint32_t>(g.table.size());
  const Bytes size = g.activations.size;
  for (const Tier tier : g.activations.homes) {
    ActivationHome& home = activations_.emplace_back(ActivationHome{.tier = tier});
    switch (tier) {
      case Tier::device: home.memory = device_carver_.carve(size); break;
      case Tier::host: home.memory = host_carver_.carve(size); break;
      case Tier::nvme:
        for (Bytes left = size; left > Bytes{};) {
          const Bytes piece = std::min(left, g.staging.slab);
          home.pieces.push_back(store.add(piece, stream));
          owners_.push_back({.activation = static_cast<std::uint32_t>(activations_.size() - 1)});
          left = left - piece;
        }
        break;
    }
  }
}

StateMap::~StateMap() {
  if (!at_rest_.empty()) device_.note_release(at_rest_);
  for (const HostRegion* region : {&staging_region_, &host_}) {
    if (!region->memory().empty()) device_.unregister_host(region->memory());
  }
}

TileState StateMap::place(std::uint32_t segment, const Tile& tile, std::uint32_t kinds,
                          bool trainable, const StateTable& table, ExtentStore& store) {
  TileState state;
  for (std::uint32_t k = 0; k < kinds; ++k) {
    const Bytes size = tile.count_elems * table.bytes_per_elem(KindId{k});
    switch (tile.homes[k]) {
      case Tier::device: state.homes[k].memory = device_carver_.carve(size).data(); break;
      case Tier::host: state.homes[k].memory = host_carver_.carve(size).data(); break;
      case Tier::nvme:
        state.homes[k].extent = store.add(size, k);
        owners_.push_back({segment, KindId{k}});
        break;
    }
  }
  if (trainable) {
    state.host_sums = carve_sums(host_carver_, tile);
    if (tile.home(kGradKind) == Tier::device) state.device_sums = carve_sums(device_carver_, tile);
  }
  return state;
}

}  // namespace strata
