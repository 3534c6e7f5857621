// Where gradients rest when the configuration leaves it to the budgets ("placement.grad": "auto").
// Pure.
#pragma once

#include "layout/layout.hpp"
#include "layout/memory_floor.hpp"
#include "layout/state_table.hpp"

namespace strata {

// `config.placement` with homes for the gradients, if it has none. They are
// - on the device, as far as the budget goes, where that saves crossings: the part that is updated
//   there, or all when one fp32 gradient is less than what all micro-batches of a step would send
//   across in the wire dtype;
// - on the host, as far as the budget goes: an update needs them there;
// - in files only beyond that: the updates wait for the verdict, and gradients for the updates.
// When that does not fit, the device takes nothing, or all that it can. When nothing fits, they are
// on the host, so that the error names what is missing there. A tier may be filled to the brim:
// scratch that is not announced in SessionOptions finds no room.
Config::Placement with_gradient_homes(const Layout& layout, const StateTable& table,
                                      const Config& config,
                                      const std::array<Bytes, kTierCount>& budgets,
                                      const MemoryExtras& extras);

}  // namespace strata
