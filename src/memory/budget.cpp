#include "memory/budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata {

Lease::Lease(Lease&& other) noexcept
    : reservation_(std::exchange(other.reservation_, nullptr)), size_(other.size_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    give_back();
    reservation_ = std::exchange(other.reservation_, nullptr);
    size_ = other.size_;
  }
  return *this;
}

Lease::~Lease() { give_back(); }

void Lease::give_back() {
  if (reservation_ != nullptr) std::exchange(reservation_, nullptr)->give_back(size_);
}

Reservation::Reservation(Budget& budget, std::string tag, Bytes size)
    : budget_(budget), tag_(std::move(tag)), size_(size) {
  const std::scoped_lock lock(budget_.mutex_);
  // An absurd size must not wrap into a sum that fits.
  const Bytes needed = std::max(size, budget_.reserved_ + size);
  if (needed > budget_.limit_) {
    throw Error(
        ErrorCode::budget_exceeded,
        fmt::format("{} budget {} cannot hold {} for {}: {} are reserved already; the "
                    "smallest budget that would do is {} bytes",
                    name_of(budget_.tier_), format_bytes(budget_.limit_), format_bytes(size), tag_,
                    format_bytes(budget_.reserved_), needed.value));
  }
  budget_.reserved_ = needed;
  budget_.by_tag_[tag_] += size;
}

Reservation::~Reservation() {
  const std::scoped_lock lock(budget_.mutex_);
  STRATA_ASSERT(in_use_ == Bytes{}, "a reservation ends while leased: " + tag_);
  budget_.reserved_ -= size_;
  budget_.by_tag_[tag_] -= size_;
}

Lease Reservation::lease(Bytes size) {
  const std::scoped_lock lock(budget_.mutex_);
  STRATA_ASSERT(in_use_ + size <= size_,
                fmt::format("lease of {} bytes from {}, which has {} of {} in use", size.value,
                            tag_, in_use_.value, size_.value));
  in_use_ += size;
  budget_.in_use_ += size;
  budget_.peak_in_use_ = std::max(budget_.peak_in_use_, budget_.in_use_);
  return {this, size};
}

void Reservation::give_back(Bytes size) {
  const std::scoped_lock lock(budget_.mutex_);
  in_use_ -= size;
  budget_.in_use_ -= size;
}

Bytes Reservation::in_use() const {
  const std::scoped_lock lock(budget_.mutex_);
  return in_use_;
}

Bytes Budget::reserved() const {
  const std::scoped_lock lock(mutex_);
  return reserved_;
}

Bytes Budget::in_use() const {
  const std::scoped_lock lock(mutex_);
  return in_use_;
}

Bytes Budget::peak_in_use() const {
  const std::scoped_lock lock(mutex_);
  return peak_in_use_;
}

std::map<std::string, Bytes> Budget::reservations() const {
  const std::scoped_lock lock(mutex_);
  return by_tag_;
}

}  // namespace strata
