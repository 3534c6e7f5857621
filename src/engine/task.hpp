// Coroutines of the engine thread. A Task is one operation with several stages (read, copy,
// event, release) written as straight code; it suspends where it waits for a disk, a device or
// memory. A TaskGroup starts tasks side by side and joins them.
//
// Ownership: a Task owns its coroutine frame and, through it, everything the stages hold. It must
// not be destroyed while suspended inside an operation; groups and Executor::run_blocking see to
// it. Errors: an Error thrown inside a task surfaces at the co_await of it, on the engine thread
// only. Thread: tasks run on the thread that resumes them, the engine's.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "engine/frame_pool.hpp"

namespace strata {

template <class T = void>
class Task;
class TaskGroup;

namespace detail {

struct TaskPromiseBase : PooledFrame {
  std::coroutine_handle<> continuation;
  std::exception_ptr error;

  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> done) noexcept {
      const auto next = done.promise().continuation;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };

  std::suspend_always initial_suspend() noexcept { return {}; }
  FinalAwaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() { error = std::current_exception(); }
};

template <class T>
struct TaskPromise : TaskPromiseBase {
  std::optional<T> value;
  Task<T> get_return_object();
  template <class U>
  void return_value(U&& result) {
    value.emplace(std::forward<U>(result));
  }
  T take() {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
    return std::move(*value);
  }
};

template <>
struct TaskPromise<void> : TaskPromiseBase {
  Task<void> get_return_object();
  void return_void() {}
  void take() {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
};

}  // namespace detail

template <class T>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::TaskPromise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Awaiting starts the task and resumes the awaiter with its value or exception.
  auto operator co_await() noexcept {
    struct Awaiter {
      Handle handle;
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiter) noexcept {
        handle.promise().continuation = awaiter;
        return handle;
      }
      T await_resume() { return handle.promise().take(); }
    };
    return Awaiter{handle_};
  }

  // Where the frame of a coroutine that takes this task as argument comes from.
  FramePool* frame_pool() const { return handle_ ? FramePool::of(handle_.address()) : nullptr; }

 private:
  Handle handle_;
};

namespace detail {

template <class T>
Task<T> TaskPromise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<TaskPromise<T>>::from_promise(*this));
}

inline Task<void> TaskPromise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<TaskPromise<void>>::from_promise(*this));
}

// Runs at once and destroys itself at the end.
struct Detached {
  struct promise_type : PooledFrame {
    using PooledFrame::operator new;
    // Of TaskGroup::run(): beside the frame of the task that it runs.
    static void* operator new(std::size_t size, const TaskGroup&, const Task<>& task) {
      return FramePool::allocate(size, task.frame_pool());
    }
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

}  // namespace detail

// Tasks that run side by side. Outlives its tasks: join it before it ends (asserted).
class TaskGroup {
 public:
  TaskGroup() = default;
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;
  ~TaskGroup() { STRATA_ASSERT(running_ == 0, "a task group ends while its tasks run"); }

  void start(Task<> task) {
    ++running_;
    run(std::move(task));
  }

  bool idle() const { return running_ == 0; }
  // A task has failed since the last join.
  bool failed() const { return error_ != nullptr; }

  // Resumes when no task runs and gives the first exception since the last join, or null. For
  // callers that must clean up with further awaits before they rethrow. One joiner at a time.
  auto settle() {
    STRATA_ASSERT(!joiner_, "two joiners of one task group");
    return Joiner{*this};
  }

  // Like settle(), and rethrows.
  auto join() {
    struct Awaiter : Joiner {
      void await_resume() {
        if (const std::exception_ptr error = Joiner::await_resume()) std::rethrow_exception(error);
      }
    };
    STRATA_ASSERT(!joiner_, "two joiners of one task group");
    return Awaiter{*this};
  }

 private:
  struct Joiner {
    TaskGroup& group;
    bool await_ready() { return group.running_ == 0; }
    void await_suspend(std::coroutine_handle<> joiner) { group.joiner_ = joiner; }
    std::exception_ptr await_resume() { return std::exchange(group.error_, nullptr); }
  };

  detail::Detached run(Task<> task) {
    try {
      co_await task;
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    if (--running_ == 0 && joiner_) std::exchange(joiner_, {}).resume();
  }

  std::size_t running_ = 0;
  std::coroutine_handle<> joiner_;
  std::exception_ptr error_;
};

}  // namespace strata
