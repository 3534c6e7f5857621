// What each resource of the first rank did in a step, beside what the rates found before the run
// allow. Values; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "record.hpp"

namespace train_gpt {

struct Resource {
  std::string name;
  double busy_s = 0;               // per step
  double bytes = 0;                // per step; 0: none that are counted
  std::optional<double> at_rates;  // seconds that the bytes of a step take at the probed rates
};

// The longest that a resource must work in a step: at the probed rates, and for compute, which no
// probe knows, as long as it was busy.
struct StepBound {
  std::string resource;
  double seconds = 0;
};

// Of those that worked. Pre: the run has steps.
std::vector<Resource> resources(const RunRecord& run);
// Empty without a probe.
std::optional<StepBound> step_bound(const RunRecord& run);
double seconds_of_step(const RunRecord& run);

std::string resource_table(const RunRecord& run);

}  // namespace train_gpt
