#include "base/wake_event.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata {

WakeEvent::WakeEvent() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_) return;
  throw Error(ErrorCode::io, "cannot make an eventfd; raise the limit of open files (ulimit -n)",
              {.errnum = errno});
}

void WakeEvent::raise() noexcept {
  const std::uint64_t one = 1;
  ssize_t written = 0;
  do {
    written = ::write(descriptor_.get(), &one, sizeof(one));
  } while (written < 0 && errno == EINTR);
  // EAGAIN: the counter is full, so the event is raised.
  STRATA_ASSERT(written == sizeof(one) || errno == EAGAIN, fmt::format("eventfd: errno {}", errno));
}

void WakeEvent::clear() noexcept {
  std::uint64_t count = 0;
  ssize_t got = 0;
  do {
    got = ::read(descriptor_.get(), &count, sizeof(count));
  } while (got < 0 && errno == EINTR);
  STRATA_ASSERT(got == sizeof(count) || errno == EAGAIN, fmt::format("eventfd: errno {}", errno));
}

void WakeEvent::wait() noexcept {
  pollfd readable{.fd = descriptor_.get(), .events = POLLIN, .revents = 0};
  while (::poll(&readable, 1, -1) < 0) {
    STRATA_ASSERT(errno == EINTR, fmt::format("poll: errno {}", errno));
  }
}

}  // namespace strata
