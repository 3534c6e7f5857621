// Runs the step of `strata bench step`: forward over the units, backward in reverse, the update.
#pragma once

#include <functional>
#include <vector>

#include "bench_step_plan.hpp"
#include "strata/clock.hpp"
#include "strata/session.hpp"

namespace strata::tool {

// Enqueues work that takes about `seconds` of `stream`, `function` (may be empty) included.
using Compute = std::function<void(StreamId stream, double seconds, HostFunction function)>;

struct StepRun {
  std::vector<double> seconds;         // of each round, from begin_step() to the next
  std::vector<double> update_seconds;  // that end() waited for the update
  Bytes reserved[kTierCount];
  Bytes planned[kTierCount];
  LinkBytes bytes;  // of all rounds
  ScheduleFacts schedule;
};

// Opens a session, runs two steps to record and to fill pools, and measures `rounds` more by
// `clock`.
StepRun run_steps(const BenchStepOptions& options, const Config& config, Backends backends,
                  const Compute& compute, const StepWork& work, const Clock& clock,
                  const std::function<void()>& check);

}  // namespace strata::tool
