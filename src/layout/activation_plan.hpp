// Where a program's activations rest, and what device and host hold for them. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/memory_floor.hpp"
#include "strata/config.hpp"
#include "strata/types.hpp"

namespace strata {

// Activations come first in the order of their indices on nvme, then host, then device: backward
// asks first for what forward stashed last.
struct ActivationPlan {
  std::vector<Tier> homes;    // by index
  Bytes size;                 // of each
  std::uint32_t slots = 0;    // on the device, for those that rest elsewhere
  std::uint32_t staging = 0;  // slabs

  std::uint32_t count(Tier tier) const;
  // Of one, in memory.
  Bytes piece() const { return round_up(size, kPieceRounding); }
};

// Fetched ahead of unstash(), beside those that the program holds.
inline constexpr std::uint32_t kActivationsAhead = 2;

ActivationPlan plan_activations(const ActivationNeeds& needs, const TierFractions& homes);

// Bytes of an activation in files: its tiles of `slab` bytes, each rounded as files ask.
Bytes activation_file_bytes(const ActivationPlan& plan, Bytes slab);

// Adds them to the lines of `plan`. `slab`: that of staging.
void add_activations(MemoryPlan& plan, const ActivationPlan& activations, Bytes slab);

}  // namespace strata
