#include "engine/frame_pool.hpp"

#include <cstdlib>
#include <new>

#include "base/check.hpp"

namespace strata {

// Stands before every frame; frames are aligned as malloc aligns.
struct alignas(std::max_align_t) FramePool::Block {
  FramePool* pool = nullptr;
  Block* next = nullptr;  // while free
  std::size_t size_class = 0;
};

FramePool::~FramePool() {
  STRATA_ASSERT(taken_ == 0, "a pool of coroutine frames ends before its frames");
  for (Block* block : free_) {
    while (block != nullptr) {
      Block* const next = block->next;
      std::free(block);
      block = next;
    }
  }
}

void* FramePool::allocate(std::size_t size, FramePool* pool) {
  const std::size_t size_class = size / kStepBytes;
  if (size_class >= kClasses) pool = nullptr;
  Block* block = nullptr;
  if (pool != nullptr) {
    const std::scoped_lock lock(pool->mutex_);
    ++pool->taken_;
    block = pool->free_[size_class];
    if (block != nullptr) pool->free_[size_class] = block->next;
  }
  if (block == nullptr) {
    const std::size_t rounded = pool == nullptr ? size : (size_class + 1) * kStepBytes;
    void* memory = std::malloc(sizeof(Block) + rounded);
    if (memory == nullptr) throw std::bad_alloc();
    block = new (memory) Block{.pool = pool, .size_class = size_class};
  }
  return block + 1;
}

void FramePool::release(void* frame) noexcept {
  Block* const block = static_cast<Block*>(frame) - 1;
  FramePool* const pool = block->pool;
  if (pool == nullptr) {
    std::free(block);
    return;
  }
  const std::scoped_lock lock(pool->mutex_);
  --pool->taken_;
  block->next = pool->free_[block->size_class];
  pool->free_[block->size_class] = block;
}

FramePool* FramePool::of(void* frame) noexcept { return (static_cast<Block*>(frame) - 1)->pool; }

}  // namespace strata
