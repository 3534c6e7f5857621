// Outside a schedule every collective is first agreed on by all ranks over the control plane, so
// that ranks that diverge get an error naming calls, units and ranks instead of a hang.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "plan/program_call.hpp"
#include "strata/communicator.hpp"

namespace strata {

struct CallToAgree {
  ProgramCall call;
  std::uint64_t sequence = 0;  // position in the step
  std::uint64_t detail = 0;    // hash of what else must be equal
  std::uint64_t schedule = 0;  // hash of what may differ
};

// Whether the schedules are the same. Throws Error(diverged) when a rank makes another call,
// Error(rank_lost) when one makes none. Blocks until all ranks have called.
bool agree_on_call(Communicator& communicator, const CallToAgree& mine, const std::string& pattern,
                   const std::function<std::string(UnitId)>& unit_name);

// Tells every rank whether all came this far: when some rank passes an error, that rank gets its
// own error thrown and the others Error(rank_lost) that quotes it. Blocks.
void agree_on_success(Communicator& communicator, const Error* mine, const std::string& what);

}  // namespace strata
