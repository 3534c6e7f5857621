// Points at which tasks wait for each other: a gate that is open or closed, and turns that are
// served in the order in which they were taken.
//
// Ownership: neither owns its waiters; both outlive them.
// Thread: the engine thread.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/intrusive_queue.hpp"
#include "engine/executor.hpp"

namespace strata {

// Whoever passes a closed gate waits until it opens. It may be closed again before a waiter runs.
class Gate {
 public:
  explicit Gate(bool open) : open_(open) {}
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { STRATA_ASSERT(waiting_.empty(), "a gate ends while tasks wait at it"); }

  bool is_open() const { return open_; }
  void close() { open_ = false; }
  void open(Executor& executor) {
    open_ = true;
    while (!waiting_.empty()) executor.make_ready(waiting_.pop().handle);
  }

  // co_await passed()
  auto passed() { return Awaiter{*this, {}, nullptr}; }

 private:
  struct Awaiter {
    Gate& gate;
    std::coroutine_handle<> handle;
    Awaiter* next;  // for the queue

    bool await_ready() const { return gate.open_; }
    void await_suspend(std::coroutine_handle<> awaiter) {
      handle = awaiter;
      gate.waiting_.push(*this);
    }
    void await_resume() {}
  };

  bool open_;
  IntrusiveQueue<Awaiter> waiting_;
};

// A first-come queue: take() a turn, wait until it is reached(), do the thing, end the turn. After
// fail() every turn is reached with that error, so that nothing overtakes what did not happen.
class Turns {
 public:
  class [[nodiscard]] Turn {
   public:
    Turn() = default;
    Turn(Turn&& other) noexcept
        : turns_(std::exchange(other.turns_, nullptr)), number_(other.number_) {}
    Turn& operator=(Turn&& other) noexcept {
      if (this != &other) {
        end();
        turns_ = std::exchange(other.turns_, nullptr);
        number_ = other.number_;
      }
      return *this;
    }
    ~Turn() { end(); }

    bool taken() const { return turns_ != nullptr; }
    // co_await reached(); at most one task waits for a turn. Throws what fail() was told.
    auto reached() { return Awaiter{*turns_, number_}; }
    void end() {
      if (Turns* turns = std::exchange(turns_, nullptr)) turns->end(number_);
    }

   private:
    friend class Turns;
    Turn(Turns& turns, std::uint64_t number) : turns_(&turns), number_(number) {}

    Turns* turns_ = nullptr;
    std::uint64_t number_ = 0;
  };

  explicit Turns(Executor& executor) : executor_(executor), places_(kFirstPlaces) {}
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  Turn take() {
    if (next_ - serving_ == places_.size()) grow();
    place(next_) = {};
    return {*this, next_++};
  }
  void fail(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);
  }
  // The first that fail() was told, or null.
  std::exception_ptr error() const { return error_; }

 private:
  static constexpr std::size_t kFirstPlaces = 4;

  struct Place {
    std::coroutine_handle<> waiter;
    bool ended = false;
  };
  struct Awaiter {
    Turns& turns;
    std::uint64_t number;

    bool await_ready() const { return turns.serving_ == number; }
    void await_suspend(std::coroutine_handle<> awaiter) { turns.place(number).waiter = awaiter; }
    void await_resume() const {
      if (turns.error_) std::rethrow_exception(turns.error_);
    }
  };

  Place& place(std::uint64_t number) { return places_[number % places_.size()]; }
  void end(std::uint64_t number) {
    place(number).ended = true;
    if (number != serving_) return;
    while (serving_ < next_ && place(serving_).ended) ++serving_;
    if (serving_ < next_ && place(serving_).waiter) {
      executor_.make_ready(std::exchange(place(serving_).waiter, {}));
    }
  }
  void grow() {
    std::vector<Place> larger(places_.size() * 2);
    for (std::uint64_t n = serving_; n < next_; ++n) larger[n % larger.size()] = place(n);
    places_ = std::move(larger);
  }

  Executor& executor_;
  std::vector<Place> places_;  // a ring, by number
  std::uint64_t serving_ = 0;
  std::uint64_t next_ = 0;
  std::exception_ptr error_;
};

}  // namespace strata
