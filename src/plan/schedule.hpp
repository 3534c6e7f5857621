// A schedule: which gathers a step brings forward, and at which of its calls. Compiled from one
// recorded step of a pattern and the number of gather slots. Pure.
//
// A gather has three moments: *staged*, when it takes a slot and its tiles set out for the device;
// *entered*, when its collective takes its place in the order of all collectives; *called*, when
// the program asks for it. Gathers are staged and entered in the order in which they are called,
// so that counts tell which.
//
// Ranks must enter alike, and the hash covers what says so. Staging is each rank's own affair: it
// follows from when its leases ended in the recorded step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/program_call.hpp"
#include "strata/types.hpp"

namespace strata {

// Units that fit on the device at once.
struct GatherSlots {
  std::uint32_t program = 1;  // that the program may hold
  std::uint32_t ahead = 0;    // beside these
  std::uint32_t total() const { return program + ahead; }
};

struct Schedule {
  std::vector<UnitId> held;  // as recorded
  std::vector<ProgramCall> calls;
  // Units in the order of their gathers, without those of units that were held already.
  std::vector<UnitId> gathers;
  // By call: how many of `gathers` are called, staged and entered when it is made.
  std::vector<std::uint32_t> called_at;
  std::vector<std::uint32_t> staged_at;
  std::vector<std::uint32_t> entered_at;
  std::uint32_t most_in_use = 0;  // slots taken at once
  std::uint64_t hash = 0;         // of all but `staged_at` and `most_in_use`; never 0
};

// Pre: the step held at most slots.program units at once.
//
// A gather is staged as early as a slot is free for it. Where there are slots beside those of the
// program it is entered at the call of the gather before it: late enough for the reduction of the
// unit before that one to go first, early enough to run beside the compute in between. Without such
// slots it is entered when it is called, since a program that holds its leases longer than recorded
// may leave none. O(calls x log slots).
Schedule make_schedule(const RecordedStep& step, GatherSlots slots);

}  // namespace strata
