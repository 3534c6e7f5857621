// Equal pieces of memory that tasks borrow: the slabs of one staging class, the gather slots, the
// gradient buffer. Whoever asks first is served first, and gets everything it asked for or waits.
//
// Ownership: a SlabSet gives its slabs back when it is destroyed; the pool outlives its sets.
// Thread: the engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/intrusive_queue.hpp"
#include "engine/executor.hpp"
#include "memory/budget.hpp"

namespace strata {

class SlabPool;

class [[nodiscard]] SlabSet {
 public:
  static constexpr std::size_t kMost = 8;

  SlabSet() = default;
  SlabSet(SlabSet&& other) noexcept;
  SlabSet& operator=(SlabSet&& other) noexcept;
  ~SlabSet() { give_back(); }

  std::size_t size() const { return count_; }
  std::span<std::byte> operator[](std::size_t i) const;

 private:
  friend class SlabPool;
  void give_back();

  SlabPool* pool_ = nullptr;
  std::size_t count_ = 0;
  std::array<std::uint32_t, kMost> slabs_{};
  Lease lease_;
};

class SlabPool {
 public:
  // `slabs` are of equal size and part of `reservation`.
  SlabPool(Executor& executor, Reservation& reservation, std::vector<std::span<std::byte>> slabs);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // co_await acquire(n) gives a SlabSet of n. Throws Error(io) once a request that never got its
  // answer keeps a slab of this pool: others might wait for it forever. Pre (asserted): n is at
  // most what the pool has.
  auto acquire(std::size_t count) { return Awaiter{*this, count, {}, {}, nullptr}; }
  std::size_t free() const { return free_.size(); }

 private:
  friend class SlabSet;
  struct Awaiter {
    SlabPool& pool;
    std::size_t count;
    SlabSet granted;
    std::coroutine_handle<> handle;
    Awaiter* next = nullptr;  // for the queue

    bool await_ready() { return pool.grant_now(*this); }
    void await_suspend(std::coroutine_handle<> awaiter) {
      handle = awaiter;
      pool.waiting_.push(*this);
    }
    SlabSet await_resume() {
      if (granted.size() < count) throw_kept();
      return std::move(granted);
    }
  };

  [[noreturn]] static void throw_kept();
  bool grant_now(Awaiter& awaiter);
  SlabSet take(std::size_t count);
  void give_back(std::span<const std::uint32_t> slabs);

  Executor& executor_;
  Reservation& reservation_;
  const std::vector<std::span<std::byte>> slabs_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> kept_;  // given back, but still owned by requests without an answer
  IntrusiveQueue<Awaiter> waiting_;
};

}  // namespace strata
