#include "cuda/event_watcher.hpp"

#include <utility>

#include "base/signals_blocked.hpp"

namespace strata::cuda {

EventWatcher::EventWatcher(EventPool& events) : events_(events) {
  const SignalsBlocked blocked;  // signals are for the program's threads
  thread_ = std::thread([this] { run(); });
}

EventWatcher::~EventWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventWatcher::notify(Event event, HostFunction function) {
  {
    const std::lock_guard lock(mutex_);
    watches_.push_back({event, std::move(function)});
  }
  changed_.notify_one();
}

void EventWatcher::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !watches_.empty(); });
    if (watches_.empty()) return;
    const Watch watch = std::move(watches_.front());
    watches_.pop_front();
    lock.unlock();
    events_.synchronize(watch.event);
    watch.function();
    lock.lock();
  }
}

}  // namespace strata::cuda
