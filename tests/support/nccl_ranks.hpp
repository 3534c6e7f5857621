// NCCL communicators for ranks of one process, joined by TCP.
#pragma once

#include <chrono>
#include <memory>

#include "nccl/nccl_communicator.hpp"
#include "support/in_process_ranks.hpp"

namespace strata::test {

// The communicator of one rank, not attached yet; `meeting` has all of the `ranks`. Called once for
// each rank, on a thread of its own. Blocks until all have called.
inline std::unique_ptr<Communicator> join_by_nccl(InProcessWorld& meeting, Rank rank,
                                                  std::uint32_t ranks) {
  const auto place = meeting.communicator(rank);
  return create_nccl_communicator(tcp::ControlPlane::connect(
      rank.value, ranks, [&](std::span<const std::byte> mine) { return place->exchange(mine); },
      std::chrono::seconds(60)));
}

}  // namespace strata::test
