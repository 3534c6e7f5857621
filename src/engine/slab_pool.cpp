#include "engine/slab_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata {

SlabSet::SlabSet(SlabSet&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      count_(std::exchange(other.count_, 0)),
      slabs_(other.slabs_),
      lease_(std::move(other.lease_)) {}

SlabSet& SlabSet::operator=(SlabSet&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::exchange(other.pool_, nullptr);
    count_ = std::exchange(other.count_, 0);
    slabs_ = other.slabs_;
    lease_ = std::move(other.lease_);
  }
  return *this;
}

std::span<std::byte> SlabSet::operator[](std::size_t i) const {
  STRATA_ASSERT(i < count_, "a slab outside its set");
  return pool_->slabs_[slabs_[i]];
}

void SlabSet::give_back() {
  lease_ = Lease{};
  if (SlabPool* pool = std::exchange(pool_, nullptr)) {
    pool->give_back(std::span(slabs_).first(std::exchange(count_, 0)));
  }
}

SlabPool::SlabPool(Executor& executor, Reservation& reservation,
                   std::vector<std::span<std::byte>> slabs)
    : executor_(executor), reservation_(reservation), slabs_(std::move(slabs)) {
  for (std::uint32_t i = 0; i < slabs_.size(); ++i) free_.push_back(i);
}

SlabPool::~SlabPool() {
  for (const std::uint32_t slab : kept_) {
    STRATA_ASSERT(!executor_.io_owns(slabs_[slab]), "a pool ends while the disk owns a slab");
  }
  STRATA_ASSERT(free_.size() + kept_.size() == slabs_.size() && waiting_.empty(),
                "a pool ends while it is used");
}

void SlabPool::throw_kept() {
  throw Error(ErrorCode::io, "the disk has not answered and still owns staging memory",
              {.errnum = ETIMEDOUT});
}

bool SlabPool::grant_now(Awaiter& awaiter) {
  STRATA_ASSERT(awaiter.count <= std::min(slabs_.size(), SlabSet::kMost),
                fmt::format("{} slabs asked of a pool of {}", awaiter.count, slabs_.size()));
  if (!kept_.empty()) return true;  // await_resume() throws
  if (!waiting_.empty() || free_.size() < awaiter.count) return false;
  awaiter.granted = take(awaiter.count);
  return true;
}

SlabSet SlabPool::take(std::size_t count) {
  SlabSet set;
  if (count == 0) return set;
  set.pool_ = this;
  set.count_ = count;
  for (std::size_t i = 0; i < count; ++i) {
    set.slabs_[i] = free_.back();
    free_.pop_back();
  }
  set.lease_ = reservation_.lease(Bytes{count * slabs_.front().size()});
  return set;
}

void SlabPool::give_back(std::span<const std::uint32_t> slabs) {
  for (const std::uint32_t slab : slabs) {
    (executor_.io_owns(slabs_[slab]) ? kept_ : free_).push_back(slab);
  }
  while (!kept_.empty() && !waiting_.empty()) {
    executor_.make_ready(waiting_.pop().handle);
  }
  while (!waiting_.empty() && waiting_.front().count <= free_.size()) {
    Awaiter& next = waiting_.pop();
    next.granted = take(next.count);
    executor_.make_ready(next.handle);
  }
}

}  // namespace strata
