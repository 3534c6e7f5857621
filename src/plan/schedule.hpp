// A schedule: which gathers a step brings forward, and after which of its calls. Compiled from the
// recorded calls of a pattern and the number of gather slots, so that every rank that recorded the
// same calls has the same schedule. Pure.
//
// A gather has three moments: *staged*, when it takes a slot and its tiles set out for the device;
// *entered*, when its collective takes its place in the order of all collectives; *called*, when
// the program asks for it. Gathers are staged and entered in the order in which they are called,
// so that counts tell which.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/program_call.hpp"
#include "strata/types.hpp"

namespace strata {

struct Schedule {
  std::vector<ProgramCall> calls;
  // Units in the order of their gathers, without those of units that were held already.
  std::vector<UnitId> gathers;
  // By call: how many of `gathers` are staged and entered once the call was made.
  std::vector<std::uint32_t> staged_after;
  std::vector<std::uint32_t> entered_after;
  std::uint32_t slots = 0;
  std::uint32_t most_in_use = 0;  // slots taken at once
  std::uint64_t hash = 0;         // of all of the above
};

// `calls`: those of one step, begin_step first; a unit that is not released in it counts as held
// to its end. `slots`: units that fit on the device at once;
// Pre: at least as many as the program held at once.
//
// A gather is staged as early as a slot is free for it in the order of the calls, and entered at
// the call of the gather before it: late enough for the reduction of the unit before that one to
// go first, early enough to run beside the compute in between. O(calls x log slots).
Schedule make_schedule(std::span<const ProgramCall> calls, std::uint32_t slots);

}  // namespace strata
