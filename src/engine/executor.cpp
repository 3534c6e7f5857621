#include "engine/executor.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.hpp"
#include "base/signals_blocked.hpp"

namespace strata {

Executor::Executor(Device& device, BlockIo& io, Workers& workers, std::int64_t io_timeout_ns,
                   Simulation* simulation)
    : device_(device),
      io_(io),
      workers_(workers),
      io_timeout_ns_(io_timeout_ns),
      simulation_(simulation),
      clock_(simulation == nullptr ? static_cast<const Clock&>(steady_clock_) : *simulation) {
  if (simulation_ != nullptr) simulation_->drive([this] { return run_once(); });
}

Executor::~Executor() {
  if (simulation_ != nullptr) simulation_->drive({});
}

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
  if (simulation_ != nullptr) return;  // nobody sleeps
  if (!std::exchange(awake_, true)) wake_event_.raise();
}

void Executor::IoAwaiter::await_suspend(std::coroutine_handle<> awaiter) {
  handle = awaiter;
  if (!executor.io_is_running()) {
    executor.last_answer_ns_ = executor.clock_.now_ns();
    executor.last_overdue_check_ns_ = executor.last_answer_ns_;
  }
  if (executor.free_operations_.empty()) {
    executor.free_operations_.push_back(static_cast<std::uint32_t>(executor.operations_.size()));
    executor.operations_.emplace_back();
  }
  const std::uint32_t index = executor.free_operations_.back();
  executor.free_operations_.pop_back();
  executor.operations_[index] = {
      .waiter = this, .memory = {request.data, request.size.value}, .running = true};
  request.tag = index;
  executor.unsubmitted_.push_back(request);
}

bool Executor::io_owns(std::span<const std::byte> memory) const {
  return overdue_ > 0 && std::ranges::any_of(operations_, [&](const Operation& operation) {
           return operation.running && operation.waiter == nullptr &&
                  operation.memory.data() < memory.data() + memory.size() &&
                  memory.data() < operation.memory.data() + operation.memory.size();
         });
}

void Executor::collect_posted() {
  const std::scoped_lock lock(mutex_);
  if (std::exchange(awake_, false)) wake_event_.clear();
  ready_.insert(ready_.end(), posted_.begin(), posted_.end());
  posted_.clear();
}

void Executor::collect_results() {
  std::array<IoResult, 64> results;
  for (std::size_t count = io_.poll(results); count > 0; count = io_.poll(results)) {
    last_answer_ns_ = clock_.now_ns();
    for (std::size_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::uint32_t>(results[i].tag);
      Operation& operation = operations_[index];
      operation.running = false;
      free_operations_.push_back(index);
      if (operation.waiter == nullptr) {
        --overdue_;
        continue;
      }
      operation.waiter->result = results[i].result;
      ready_.push_back(operation.waiter->handle);
    }
  }
}

// Timers, and waiters of requests without an answer.
void Executor::collect_due() {
  if (timers_.empty() && !io_is_running()) return;
  const std::int64_t now_ns = clock_.now_ns();
  std::erase_if(timers_, [&](const Timer& timer) {
    if (timer.due_ns > now_ns) return false;
    ready_.push_back(timer.handle);
    return true;
  });
  if (io_is_running()) check_overdue(now_ns);
}

void Executor::check_overdue(std::int64_t now_ns) {
  if (simulation_ != nullptr) return;
  // wait() lets no more than a quarter of the timeout pass between two checks, unless the process
  // was stopped.
  const std::int64_t since_check_ns = now_ns - std::exchange(last_overdue_check_ns_, now_ns);
  if (since_check_ns > io_timeout_ns_ / 2) last_answer_ns_ += since_check_ns;
  if (now_ns - last_answer_ns_ < io_timeout_ns_) return;
  for (Operation& operation : operations_) {
    if (operation.waiter == nullptr || !operation.running) continue;
    IoAwaiter& waiter = *std::exchange(operation.waiter, nullptr);
    ++overdue_;
    waiter.result = kNoAnswer;
    ready_.push_back(waiter.handle);
  }
}

bool Executor::run_once() {
  bool progress = false;
  collect_posted();
  collect_results();
  collect_due();
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

int Executor::poll_timeout_ms() const {
  std::optional<std::int64_t> next_ns;
  for (const Timer& timer : timers_)
    next_ns = std::min(next_ns.value_or(timer.due_ns), timer.due_ns);
  if (io_is_running()) {
    const std::int64_t check_ns = last_overdue_check_ns_ + io_timeout_ns_ / 4;
    next_ns = std::min(next_ns.value_or(check_ns), check_ns);
  }
  if (!next_ns) return -1;
  const std::int64_t wait_ns = std::max<std::int64_t>(*next_ns - clock_.now_ns(), 0);
  return static_cast<int>(std::min<std::int64_t>(wait_ns / 1'000'000 + 1, 60'000));
}

void Executor::wait() {
  std::array<pollfd, 2> sources{pollfd{wake_event_.descriptor(), POLLIN, 0},
                                pollfd{io_.descriptor(), POLLIN, 0}};
  const int result = ::poll(sources.data(), sources.size(), poll_timeout_ms());
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
