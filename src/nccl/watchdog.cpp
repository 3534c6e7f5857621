#include "nccl/watchdog.hpp"

#include <optional>
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

const Pending* Watchdog::head() {
  while (!pending_.empty() && device_.done(pending_.front().done)) {
    pending_.pop_front();
    is_ready_ = false;
  }
  if (pending_.empty()) return nullptr;
  if (!is_ready_ && device_.done(pending_.front().ready)) {
    is_ready_ = true;
    ready_since_ = Clock::now();
  }
  return &pending_.front();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, kPeriod, [&] { return stop_ || woken_; });
    if (stop_) return;
    woken_ = false;
    const Pending* first = head();
    std::optional<Pending> late;
    if (first != nullptr && is_ready_) late = *first;
    const auto waited = Clock::now() - ready_since_;
    lock.unlock();
    hooks_.look();
    if (late) hooks_.late(*late, waited);
    lock.lock();
  }
}

}  // namespace strata::nccl
