// Ctrl-C, SIGTERM and SIGHUP as a flag that long work looks at, so that it can tidy up before it
// ends; SIGPIPE is ignored meanwhile, so that a closed stdout shows as a failed write.
#pragma once

#include <signal.h>

#include <array>
#include <exception>

namespace strata::tool {

class Interrupted final : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted; nothing was left behind"; }
};

// Handles the signals while it lives and puts the former handlers back. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Throws Interrupted once a signal has come since the guard was made.
  void check() const;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  std::array<struct sigaction, kSignals.size()> former_{};
};

}  // namespace strata::tool
