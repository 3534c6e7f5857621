// How a thread waits for another process: it polls eagerly for a few microseconds, since most
// waits are short, then sleeps between polls, longer and longer. It never holds a core that a
// compute thread could use (sleeping polls beat spinning and yielding there).
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace strata::mpi {

class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns soon; call it between polls.
  void pause() {
    waited_ = Clock::now() - start_;
    if (waited_ < kEager) return;
    std::this_thread::sleep_for(nap_);
    nap_ = std::min(2 * nap_, kLongestNap);
  }

  // Time since construction, as of the last pause().
  Clock::duration waited() const { return waited_; }

 private:
  static constexpr std::chrono::microseconds kEager{20};
  static constexpr std::chrono::microseconds kLongestNap{200};

  Clock::time_point start_ = Clock::now();
  Clock::duration waited_{};
  std::chrono::microseconds nap_{10};
};

}  // namespace strata::mpi
