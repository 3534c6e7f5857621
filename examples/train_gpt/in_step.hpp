// Ranks whose work on files takes unequal time meet after each unit: a rank that was far ahead
// would otherwise run into the communicator's timeout.
#pragma once

#include <cstddef>
#include <span>

#include "strata/communicator.hpp"

namespace train_gpt {

// Collective. Blocks until all ranks are here.
inline void keep_in_step(strata::Communicator& communicator) {
  const std::byte nothing{};
  (void)communicator.exchange(std::span(&nothing, 1));
}

}  // namespace train_gpt
