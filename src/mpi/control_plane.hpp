// The control plane of one MPI communicator: small all-to-all messages, the notice by which a
// rank that gives up tells its peers, and the wait that every part of the adapter uses, which
// ends when a peer is lost instead of hanging.
//
// Every rank makes the same calls in the same order; each message says which call it belongs to,
// so that ranks that diverge get an error naming the calls.
// Thread: call() from one thread at a time; the rest from any.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/first_failure.hpp"
#include "mpi/backoff.hpp"
#include "mpi/mpi_process.hpp"
#include "mpi/peer_watch.hpp"
#include "ports/control_messages.hpp"

namespace strata::mpi {

class ControlPlane {
 public:
  // Takes over `comm`, which nobody else uses. `failure` ends waits; it outlives this.
  // Collective. Blocks.
  ControlPlane(MPI_Comm comm, const FirstFailure& failure);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return size_; }
  MPI_Comm comm() const { return comm_; }

  // all[r] = what rank r passed to the same call. Throws Error(rank_lost) or Error(diverged); after
  // that the ranks are out of step and the plane must not be used. Blocks.
  std::vector<std::byte> call(ControlCall which, std::span<const std::byte> mine);

  // Tells every peer once that this rank gives up. Best effort, does not block, does not throw.
  void give_up(std::string_view reason) noexcept;

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }

  // Polls `ready()` until it is true. `missing()` names the ranks it still waits for. Throws when
  // one of them has ended or closed, when any rank gave up, when this rank failed elsewhere, and
  // after the timeout. Blocks.
  template <class Ready, class Missing>
  void wait(std::string_view what, Ready&& ready, Missing&& missing) {
    if (ready()) return;
    Backoff backoff;
    Backoff::Clock::duration next_check = check_period();
    while (!ready()) {
      backoff.pause();
      if (backoff.waited() < next_check) continue;
      if (const auto error = find_loss(what, missing(), backoff.waited())) {
        if (ready()) return;  // what a peer sent before it ended still counts
        throw Error(*error);
      }
      next_check = backoff.waited() + check_period();
    }
  }

  // Frees the communicator. Collective, and only when no rank has failed.
  void free();

 private:
  struct Messages;

  Backoff::Clock::duration check_period() const;
  std::optional<Error> find_loss(std::string_view what, const std::vector<std::uint32_t>& missing,
                                 Backoff::Clock::duration waited);
  std::optional<Error> find_notice();
  bool has_closed(std::uint32_t peer);
  void start(Messages& messages, ControlCall which, std::span<const std::byte> mine);
  bool advance(Messages& messages);
  void accept(Messages& messages, std::uint32_t peer);
  std::vector<std::byte> unpack(const Messages& messages, ControlCall which,
                                std::span<const std::byte> mine) const;

  MPI_Comm comm_;
  const FirstFailure& failure_;
  std::uint32_t rank_ = 0;
  std::uint32_t size_ = 0;
  std::vector<ProcessIdentity> identities_;
  std::atomic<std::int64_t> timeout_ms_ = 60'000;
  // Set when a notice was sent or received: the group knows.
  std::atomic<bool> told_ = false;
  std::uint32_t sequence_ = 0;
};

}  // namespace strata::mpi
