// `strata inspect schedule`: what a session would bring forward in a plain training step: forward
// over the units, backward in reverse, one lease at a time.
#pragma once

#include <cstdint>
#include <string>

#include "strata/config.hpp"
#include "strata/model.hpp"

namespace strata::tool {

struct ScheduleQuestion {
  std::uint32_t ranks = 1;
  std::uint32_t ranks_per_node = 1;
  std::uint32_t micro_batches = 1;
};

// A line for each call: what is staged and entered after it, and the slots in use. Throws what
// Session::plan_memory() throws, and Error(budget_exceeded) when the model does not fit.
std::string schedule_text(const Model& model, const Config& config,
                          const ScheduleQuestion& question);

}  // namespace strata::tool
