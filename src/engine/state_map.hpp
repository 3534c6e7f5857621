// Where every tile of every state kind lies in this session: device pointer, host pointer or
// extent, and the memory that gathers, gradients and staging use. Built once at open() from the
// layout's figures (layout/memory_floor.hpp); nothing is allocated afterwards.
//
// Ownership: owns the host memory and the extents' store; borrows the device's arena.
// Thread: built on the caller, then read by the engine thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "layout/activation_plan.hpp"
#include "layout/layout.hpp"
#include "layout/memory_floor.hpp"
#include "layout/placement.hpp"
#include "layout/state_table.hpp"
#include "memory/budget.hpp"
#include "memory/extent_store.hpp"
#include "memory/region.hpp"
#include "strata/device.hpp"
#include "strata/memory_plan.hpp"

namespace strata {

struct TileHome {
  std::byte* memory = nullptr;  // device or host tier
  ExtentId extent;              // nvme tier
};

// Where a tile's canonical sums are written: blocks, then the flag.
struct TileSums {
  double* blocks = nullptr;
  std::uint32_t* nonfinite = nullptr;
};

struct TileState {
  std::array<TileHome, kMaxKinds> homes;
  TileSums host_sums;
  TileSums device_sums;  // only when the gradient rests on the device
};

// Everything that decides what is where; equal on all ranks but for the rank itself.
struct StateGeometry {
  Layout layout;
  StateTable table;
  Placement placement;
  Rank rank;
  std::uint64_t tile_elems = 0;
  std::uint32_t max_live_units = 2;
  LookAheadBuffers look_ahead;
  std::uint32_t gather_slots() const { return max_live_units + look_ahead.gathers; }
  Bytes gather_slot;    // largest gathered unit
  Bytes gradient_slot;  // largest gradient buffer
  StagingPlan staging;
  ActivationPlan activations;
};

struct StagingMemory {
  std::vector<std::span<std::byte>> gather, gradient, update, checkpoint, activation;
};

// Where an activation rests.
struct ActivationHome {
  Tier tier = Tier::device;
  std::span<std::byte> memory;   // device or host tier
  std::vector<ExtentId> pieces;  // nvme tier: as large as a staging slab, the last as what is left
};

// What an extent holds: a tile of a state, or a piece of an activation.
struct ExtentOwner {
  std::uint32_t segment = 0;
  KindId kind;
  std::optional<std::uint32_t> activation = {};
};

class StateMap {
 public:
  struct Options {
    std::uint32_t spare_slots = 0;  // see nvme.spare_slots
    bool addresses_only = false;    // of a simulation, which touches no host memory
    LogSink log;                    // may be empty
  };
  StateMap(const StateGeometry& geometry, Device& device, ExtentStore& store,
           const Options& options);
  ~StateMap();

  const TileState& tile(std::uint32_t segment, std::uint32_t tile) const {
    return tiles_[segment][tile];
  }
  std::uint32_t extents() const { return static_cast<std::uint32_t>(owners_.size()); }
  const ExtentOwner& owner(ExtentId extent) const { return owners_[extent.value]; }
  const ActivationHome& activation(std::uint32_t index) const { return activations_[index]; }
  const std::vector<std::span<std::byte>>& activation_slots() const { return activation_slots_; }
  const StagingMemory& staging() const { return staging_; }
  // All staging slabs together: what transfers use.
  std::span<std::byte> staging_memory() const { return staging_region_.memory(); }
  Bytes staging_page_size() const { return staging_region_.page_size(); }
  const std::vector<std::span<std::byte>>& gather_slots() const { return gather_slots_; }
  const std::vector<std::span<std::byte>>& gradient_slots() const { return gradient_slots_; }
  // Device bytes behind everything that the floor and the look-ahead need.
  std::span<std::byte> device_surplus() const { return surplus_; }

 private:
  TileState place(std::uint32_t segment, const Tile& tile, std::uint32_t kinds, bool trainable,
                  const StateTable& table, ExtentStore& store);

  void place_activations(const StateGeometry& geometry, ExtentStore& store);

  Device& device_;
  HostRegion staging_region_;
  HostRegion host_;
  Carver host_carver_;
  Carver device_carver_;
  std::vector<std::vector<TileState>> tiles_;
  std::vector<ExtentOwner> owners_;  // by extent
  StagingMemory staging_;
  std::vector<std::span<std::byte>> gather_slots_;
  std::vector<std::span<std::byte>> gradient_slots_;
  std::vector<ActivationHome> activations_;
  std::vector<std::span<std::byte>> activation_slots_;
  std::span<std::byte> surplus_;
  std::span<std::byte> at_rest_;  // device bytes lent for the session's whole life
};

}  // namespace strata
