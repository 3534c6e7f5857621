// Ranks that live in one process, each on a thread of its own: Communicators for tests that need
// several ranks without a launcher. Sums have the same bits as the MPI adapter's. Seeded delays
// before and inside collectives vary who arrives first; kill() takes a rank away at any moment.
//
//   InProcessWorld world(2, seed);
//   auto communicator = world.communicator(Rank{0});        // one per rank, on any thread
//
//   run_ranks(4, [](Rank rank, Communicator& communicator) { ... });
//
// Each rank attaches a device of its own. A collective reads the peers' buffers directly, so a
// rank's buffers stay alive until its own collective has run, as for every communicator.
// Ownership: communicators share the world's state and may outlive the world.
// Thread: the world's functions from any; communicators as the port says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "strata/communicator.hpp"

namespace strata::test {

class InProcessGroup;

class InProcessWorld {
 public:
  explicit InProcessWorld(std::uint32_t size, std::uint64_t seed = 0);

  // The communicator of one rank. Pre: not asked for before.
  std::unique_ptr<Communicator> communicator(Rank rank);

  // Ends a rank as if its process had died: its collectives do nothing from now on, its control
  // calls throw, and peers that wait for it get Error(rank_lost) naming it.
  void kill(Rank rank);

 private:
  std::shared_ptr<InProcessGroup> group_;
};

// Calls `body` once per rank, each on a thread of its own, and waits for all. When one throws, its
// peers are told, so that they do not wait for it; then the first exception is thrown again.
using RankBody = std::function<void(Rank rank, Communicator& communicator)>;
void run_ranks(std::uint32_t size, const RankBody& body, std::uint64_t seed = 0);

}  // namespace strata::test
