#include "interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "failure.hpp"

namespace train_gpt::interrupt {
namespace {

// A signal handler reaches nothing but objects of static storage.
std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (asked.exchange(true)) ::_exit(static_cast<int>(ExitCode::interrupted));
}

void handle(int signal_number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  if (::sigaction(signal_number, &action, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "sigaction");
  }
}

}  // namespace

void install() {
  handle(SIGINT, on_signal);
  handle(SIGTERM, on_signal);
  handle(SIGPIPE, SIG_IGN);
}

bool requested() { return asked.load(); }

}  // namespace train_gpt::interrupt
