// What a session needs in each tier, proven before anything is allocated: bytes at rest, the
// largest gathers and gradient buffer, the staging minimum of each class, and what others use.
// The engine reserves exactly these lines. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/types.hpp"

namespace strata {

enum class MemoryPurpose : std::uint8_t {
  at_rest,
  spare_slots,
  gathers,
  gradient_buffer,
  gradient_sums,
  staging_gather,
  staging_gradient,
  staging_update,
  staging_checkpoint,
  activations,
  activation_slots,
  staging_activation,
  communicator,
  scratch,
  outside,
};

// Activations that a program stashes between forward and backward, all of one size.
struct ActivationNeeds {
  std::uint32_t count = 0;
  Bytes size;
  std::uint32_t live = 2;  // leases that it holds at once
};

struct MemoryLine {
  Tier tier = Tier::device;
  MemoryPurpose purpose = MemoryPurpose::at_rest;
  std::string what;  // "param at rest", "gathers: 2 x block.0", ...
  Bytes size;
};

struct MemoryPlan {
  std::vector<MemoryLine> lines;
  Bytes budgets[kTierCount];  // of this rank

  Bytes total(Tier tier) const;
  Bytes total(Tier tier, MemoryPurpose purpose) const;
  bool fits() const;
  // Throws Error(budget_exceeded) naming each tier that is too small, with the smallest budget
  // that would do and the lines that make it up.
  void require_fit() const;
  // A table of the lines per tier with totals and budgets.
  std::string to_text() const;
};

}  // namespace strata
