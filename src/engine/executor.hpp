// The engine's loop: resumes tasks when the disk, the device, a worker or the caller has something
// for them. Passive: run_once() does what is possible now and returns; a thread (EngineThread), a
// simulation or a test drives it. Between two passes nothing runs.
//
// Thread: post(), wake(), start() and run_blocking() from any thread; everything else on the thread
// that drives the loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/wake_event.hpp"
#include "engine/task.hpp"
#include "engine/timeline_marks.hpp"
#include "ports/simulation.hpp"
#include "ports/workers.hpp"
#include "strata/block_io.hpp"
#include "strata/clock.hpp"
#include "strata/device.hpp"

namespace strata {

class Executor {
 public:
  // When no request has been answered for `io_timeout_ns`, those that run count as failed. Time in
  // which the process was stopped does not count. On a `simulation` no request is given up, and
  // run_blocking() drives the loop.
  Executor(Device& device, BlockIo& io, Workers& workers,
           std::int64_t io_timeout_ns = kDefaultIoTimeoutNs, Simulation* simulation = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Where jobs with a label are entered; null: nowhere. Outlives the loop.
  void enter_into(const TimelineMarks* marks) { marks_ = marks; }

  // Where the coroutines that run on this loop have their frames.
  FramePool& frames() { return frames_; }
  // Resumes `handle` on the loop's thread.
  void post(std::coroutine_handle<> handle);
  // Ends a wait().
  void wake();
  // Resumes `handle` later in this pass. Loop thread only.
  void make_ready(std::coroutine_handle<> handle) { ready_.push_back(handle); }

  // One pass; true when anything was resumed. Does not block.
  bool run_once();
  // Blocks until something was posted or completed since the last pass.
  void wait();

  // Runs a task on the loop and returns its value on the calling thread, which must not be the
  // loop's. Blocks.
  template <class T>
  T run_blocking(Task<T> task);

  // Starts a task in `group` on the loop, after everything posted before. Does not block.
  void start(TaskGroup& group, Task<> task) { start_on_loop(*this, group, std::move(task)); }

  // co_await io(request): bytes moved or -errno, or kNoAnswer: the disk still owns the memory.
  static constexpr std::int64_t kNoAnswer = std::numeric_limits<std::int64_t>::min();
  auto io(const IoRequest& request) { return IoAwaiter{*this, request}; }
  std::int64_t now_ns() const { return clock_.now_ns(); }
  // co_await pause(ns): resumes after that time.
  auto pause(std::int64_t duration_ns) {
    return PauseAwaiter{*this, clock_.now_ns() + duration_ns};
  }
  // Whether memory belongs to a request whose waiter has been told kNoAnswer. Loop thread only.
  bool io_owns(std::span<const std::byte> memory) const;
  bool has_overdue_io() const { return overdue_ > 0; }
  // co_await event(e): resumes once the event has fired. Throws the device's failure, if any: what
  // was waited for did not happen then.
  auto event(Event event) { return EventAwaiter{{*this, event}}; }
  // The same for who only gives something back.
  auto fired(Event event) { return FiredAwaiter{*this, event}; }
  // co_await work(cost, function): runs it on a worker.
  template <class Function>
  auto work(const JobCost& cost, Function function) {
    return WorkAwaiter<Function>{*this, cost, std::move(function)};
  }

 private:
  struct IoAwaiter {
    Executor& executor;
    IoRequest request;
    std::int64_t result = 0;
    std::coroutine_handle<> handle;

    bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> awaiter);
    std::int64_t await_resume() { return result; }
  };

  // A request that was handed to the disk. It outlives its waiter when that was told of a timeout.
  struct Operation {
    IoAwaiter* waiter = nullptr;
    std::span<const std::byte> memory;
    bool running = false;
  };

  struct PauseAwaiter {
    Executor& executor;
    std::int64_t until_ns;

    bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> awaiter) {
      executor.timers_.push_back({until_ns, awaiter});
    }
    void await_resume() {}
  };
  struct Timer {
    std::int64_t due_ns;
    std::coroutine_handle<> handle;
  };

  struct FiredAwaiter {
    Executor& executor;
    Event waited;

    bool await_ready() { return executor.device_.done(waited); }
    void await_suspend(std::coroutine_handle<> awaiter) {
      executor.device_.notify(waited, [to = &executor, awaiter] { to->post(awaiter); });
    }
    void await_resume() {}
  };
  struct EventAwaiter : FiredAwaiter {
    void await_resume() {
      if (const std::optional<Error> failure = executor.device_.failure()) throw Error(*failure);
    }
  };

  template <class Function>
  // NOLINTNEXTLINE(cppcoreguidelines-virtual-class-destructor): final, and never deleted as a Job
  struct WorkAwaiter final : Job {
    WorkAwaiter(Executor& on, const JobCost& costs, Function what)
        : Job(costs), executor(on), function(std::move(what)) {}
    Executor& executor;
    Function function;
    std::coroutine_handle<> handle;

    void run() override { function(); }
    void done() override { executor.post(handle); }

    bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> awaiter) {
      handle = awaiter;
      executor.workers_.submit(*this);
    }
    void await_resume() {
      if (!cost.label.empty()) executor.enter_work(*this);
    }
  };

  template <class T>
  struct Outcome;
  template <class T>
  static detail::Detached deliver(Executor& executor, Task<T> task, Outcome<T>& outcome);
  // Awaiting it moves the coroutine to the loop's thread.
  auto on_loop() {
    struct Awaiter {
      Executor& executor;
      bool await_ready() { return false; }
      void await_suspend(std::coroutine_handle<> awaiter) { executor.post(awaiter); }
      void await_resume() {}
    };
    return Awaiter{*this};
  }

  static detail::Detached start_on_loop(Executor& executor, TaskGroup& group, Task<> task) {
    co_await executor.on_loop();
    group.start(std::move(task));
  }

  void enter_work(const Job& job) const {
    if (marks_ != nullptr) {
      marks_->add(TimelineRow::workers, std::string(job.cost.label), job.begin_ns, job.end_ns);
    }
  }
  void collect_posted();
  void collect_results();
  void collect_due();
  void check_overdue(std::int64_t now_ns);
  bool io_is_running() const { return free_operations_.size() < operations_.size(); }
  int poll_timeout_ms() const;
  void raise_wake_event();  // mutex_ is held

  static constexpr std::int64_t kDefaultIoTimeoutNs = 60'000'000'000;

  FramePool frames_;
  Device& device_;
  BlockIo& io_;
  Workers& workers_;
  const std::int64_t io_timeout_ns_;
  Simulation* const simulation_;
  const SteadyClock steady_clock_;
  const Clock& clock_;
  const TimelineMarks* marks_ = nullptr;

  std::vector<Operation> operations_;  // by the tag of their request
  std::vector<std::uint32_t> free_operations_;
  std::size_t overdue_ = 0;          // operations whose waiter is gone
  std::int64_t last_answer_ns_ = 0;  // or when the first of those running was submitted
  std::int64_t last_overdue_check_ns_ = 0;
  std::vector<Timer> timers_;
  std::vector<std::coroutine_handle<>> ready_;
  std::vector<std::coroutine_handle<>> running_;  // scratch of run_once
  std::vector<IoRequest> unsubmitted_;

  std::mutex mutex_;
  std::vector<std::coroutine_handle<>> posted_;  // guarded by mutex_, as below
  bool awake_ = false;                           // the event is raised
  WakeEvent wake_event_;
};

template <class T>
struct Executor::Outcome {
  std::mutex mutex;
  std::condition_variable arrived;
  bool done = false;
  std::exception_ptr error;
  std::conditional_t<std::is_void_v<T>, std::monostate, std::optional<T>> value;
};

template <class T>
detail::Detached Executor::deliver(Executor& executor, Task<T> task, Outcome<T>& outcome) {
  co_await executor.on_loop();
  std::exception_ptr error;
  try {
    // Ends before the caller is told, with all that the task and its error hold on to.
    Task<T> running = std::move(task);
    if constexpr (std::is_void_v<T>) {
      co_await running;
    } else {
      outcome.value.emplace(co_await running);
    }
  } catch (...) {
    error = std::current_exception();
  }
  const std::scoped_lock lock(outcome.mutex);
  outcome.error = std::move(error);
  outcome.done = true;
  outcome.arrived.notify_one();
}

template <class T>
T Executor::run_blocking(Task<T> task) {
  Outcome<T> outcome;
  deliver(*this, std::move(task), outcome);
  if (simulation_ != nullptr) {
    simulation_->run_until([&] { return outcome.done; });
  } else {
    std::unique_lock lock(outcome.mutex);
    outcome.arrived.wait(lock, [&] { return outcome.done; });
  }
  if (outcome.error) std::rethrow_exception(outcome.error);
  if constexpr (!std::is_void_v<T>) return std::move(*outcome.value);
}

// Drives an executor on a thread of its own until destroyed. Pre: no task is left then.
class EngineThread {
 public:
  explicit EngineThread(Executor& executor);
  ~EngineThread();

 private:
  Executor& executor_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace strata
