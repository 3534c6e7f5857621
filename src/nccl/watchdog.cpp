#include "nccl/watchdog.hpp"

#include <utility>

#include "base/signals_blocked.hpp"

namespace strata::nccl {
namespace {

// Often enough to tell of a loss within a fraction of a second, rarely enough to cost nothing.
constexpr std::chrono::milliseconds kPeriod{50};

}  // namespace

Watchdog::Watchdog(Device& device, Hooks hooks) : device_(device), hooks_(std::move(hooks)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::add(const Pending& pending) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(pending);
}

void Watchdog::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

// The device is asked without the lock: it may be held up by what is being watched.
std::optional<std::pair<Pending, std::chrono::nanoseconds>> Watchdog::take_head() {
  while (true) {
    Pending head;
    {
      const std::lock_guard lock(mutex_);
      if (pending_.empty()) return std::nullopt;
      head = pending_.front();
    }
    if (!device_.done(head.done)) {
      if (!is_ready_ && device_.done(head.ready)) {
        is_ready_ = true;
        ready_since_ = Clock::now();
      }
      if (!is_ready_) return std::nullopt;
      return std::pair(head, std::chrono::nanoseconds(Clock::now() - ready_since_));
    }
    is_ready_ = false;
    const std::lock_guard lock(mutex_);
    pending_.pop_front();
  }
}

void Watchdog::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kPeriod, [&] { return stop_ || woken_; });
      if (stop_) return;
      woken_ = false;
    }
    hooks_.look();
    if (const auto head = take_head()) hooks_.late(head->first, head->second);
  }
}

}  // namespace strata::nccl
