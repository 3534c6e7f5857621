// Watches the collectives of one NCCL communicator: whether NCCL has met an error, and whether the
// collective at the head of the line takes longer than peers are waited for. Counted from the
// moment at which its inputs were ready, so that a slow step of this rank is no fault of a peer.
//
// A thread of its own, which sleeps between looks. It calls the functions of Hooks one at a time.
// Thread: the methods from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "strata/device.hpp"

namespace strata::nccl {

// A collective that was enqueued and may not have finished.
struct Pending {
  std::string_view what;     // static storage
  std::uint64_t number = 0;  // of this communicator, from 1
  Event ready;               // fires when its inputs are
  Event done;
};

class Watchdog {
 public:
  struct Hooks {
    // Looks for trouble that has nothing to do with the head of the line. Called often.
    std::function<void()> look;
    // The head of the line has been ready for this long and is not done. Called at every look.
    std::function<void(const Pending&, std::chrono::nanoseconds)> late;
  };

  Watchdog(Device& device, Hooks hooks);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(const Pending& pending);
  // Looks now.
  void wake();

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  // Takes off what is done; how long the head of the line has been ready, if it has.
  std::optional<std::pair<Pending, std::chrono::nanoseconds>> take_head();

  Device& device_;
  const Hooks hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;  // guarded by mutex_, as below
  bool woken_ = false;
  bool stop_ = false;
  Clock::time_point ready_since_;  // of the head, when is_ready_; the thread's own, as is_ready_
  bool is_ready_ = false;
  std::thread thread_;
};

}  // namespace strata::nccl
