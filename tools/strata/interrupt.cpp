#include "interrupt.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "strata/error.hpp"

namespace strata::tool {
namespace {

// A signal handler reaches nothing but objects of static storage.
std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) { asked = true; }

}  // namespace

InterruptGuard::InterruptGuard() {
  asked = false;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = kSignals[i] == SIGPIPE ? SIG_IGN : on_signal;
    action.sa_flags = SA_RESTART;
    if (::sigaction(kSignals[i], &action, &former_[i]) != 0) {
      throw Error(ErrorCode::io, "cannot handle signals", {.errnum = errno});
    }
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &former_[i], nullptr);
  }
}

void InterruptGuard::check() const {
  if (asked) throw Interrupted();
}

}  // namespace strata::tool
