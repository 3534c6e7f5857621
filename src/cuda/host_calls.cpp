#include "cuda/host_calls.hpp"

#include <chrono>
#include <utility>

namespace strata::cuda {

HostCalls::Call& HostCalls::prepare(HostFunction function, std::atomic<std::int64_t>& busy_ns) {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    idle_.push_back(&calls_.emplace_back());
    idle_.back()->owner = this;
    idle_.reserve(calls_.size());
  }
  Call& call = *idle_.back();
  idle_.pop_back();
  call.function = std::move(function);
  call.busy_ns = &busy_ns;
  return call;
}

void HostCalls::cancel(Call& call) {
  call.function = nullptr;
  const std::lock_guard lock(mutex_);
  idle_.push_back(&call);
}

void HostCalls::run(void* data) {
  auto& call = *static_cast<Call*>(data);
  HostCalls& owner = *call.owner;
  {
    const std::lock_guard lock(owner.mutex_);
    ++owner.running_;
  }
  const auto begin = std::chrono::steady_clock::now();
  call.function();
  *call.busy_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  owner.leave(call);
}

void HostCalls::leave(Call& call) {
  call.function = nullptr;
  const std::lock_guard lock(mutex_);
  idle_.push_back(&call);
  --running_;
  // Under the lock: whoever waits may destroy this.
  changed_.notify_all();
}

void HostCalls::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
}

}  // namespace strata::cuda
