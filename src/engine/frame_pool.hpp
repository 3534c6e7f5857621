// Memory of coroutine frames, kept for the next frame of about the same size, so that a step
// allocates nothing once the first has been made. A coroutine whose first argument (for a member
// function, its object) has `FramePool& frames()` takes its frame from there; any other from the
// heap.
//
// Ownership: the pool outlives the frames taken from it (asserted).
// Thread: any.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace strata {

class FramePool {
 public:
  FramePool() = default;
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  // A frame of `pool`, or of the heap when that is null.
  static void* allocate(std::size_t size, FramePool* pool);
  static void release(void* frame) noexcept;
  // The pool that a frame came from; null for the heap.
  static FramePool* of(void* frame) noexcept;

 private:
  struct Block;

  static constexpr std::size_t kStepBytes = 128;
  static constexpr std::size_t kClasses = 32;  // larger frames come from the heap

  std::mutex mutex_;
  std::array<Block*, kClasses> free_{};  // guarded by mutex_, as below
  std::size_t taken_ = 0;
};

template <class Owner>
concept HasFrames = requires(Owner& owner) {
  { owner.frames() } -> std::same_as<FramePool&>;
};

// What a promise derives from.
struct PooledFrame {
  static void* operator new(std::size_t size) { return FramePool::allocate(size, nullptr); }
  template <HasFrames Owner, class... Arguments>
  static void* operator new(std::size_t size, Owner& owner, const Arguments&...) {
    return FramePool::allocate(size, &owner.frames());
  }
  static void operator delete(void* frame) noexcept { FramePool::release(frame); }
};

}  // namespace strata
