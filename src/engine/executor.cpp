#include "engine/executor.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/check.hpp"
#include "base/signals_blocked.hpp"

namespace strata {

Executor::Executor(Device& device, BlockIo& io, WorkerPool& workers)
    : device_(device), io_(io), workers_(workers) {}

void Executor::wake() {
  const std::scoped_lock lock(mutex_);
  raise_wake_event();
}

void Executor::post(std::coroutine_handle<> handle) {
  const std::scoped_lock lock(mutex_);
  posted_.push_back(handle);
  raise_wake_event();
}

void Executor::raise_wake_event() {
  if (!std::exchange(awake_, true)) wake_event_.raise();
}

void Executor::IoAwaiter::await_suspend(std::coroutine_handle<> awaiter) {
  handle = awaiter;
  request.tag = reinterpret_cast<std::uint64_t>(this);
  executor.unsubmitted_.push_back(request);
}

bool Executor::run_once() {
  bool progress = false;
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(awake_, false)) wake_event_.clear();
    ready_.insert(ready_.end(), posted_.begin(), posted_.end());
    posted_.clear();
  }
  std::array<IoResult, 64> results;
  for (std::size_t count = io_.poll(results); count > 0; count = io_.poll(results)) {
    for (std::size_t i = 0; i < count; ++i) {
      auto* awaiter = reinterpret_cast<IoAwaiter*>(results[i].tag);
      awaiter->result = results[i].result;
      ready_.push_back(awaiter->handle);
    }
  }
  while (!ready_.empty()) {
    progress = true;
    running_.swap(ready_);
    for (const std::coroutine_handle<> handle : running_) handle.resume();
    running_.clear();
  }
  if (!unsubmitted_.empty()) {
    io_.submit(unsubmitted_);
    unsubmitted_.clear();
    progress = true;
  }
  return progress;
}

void Executor::wait() {
  std::array<pollfd, 2> sources{pollfd{wake_event_.descriptor(), POLLIN, 0},
                                pollfd{io_.descriptor(), POLLIN, 0}};
  const int result = ::poll(sources.data(), sources.size(), -1);
  STRATA_ASSERT(result >= 0 || errno == EINTR, fmt::format("poll: errno {}", errno));
}

EngineThread::EngineThread(Executor& executor) : executor_(executor) {
  const SignalsBlocked inherited_by_thread;
  thread_ = std::thread([this] {
    while (!stop_) {
      if (!executor_.run_once()) executor_.wait();
    }
  });
}

EngineThread::~EngineThread() {
  stop_ = true;
  executor_.wake();
  thread_.join();
}

}  // namespace strata
