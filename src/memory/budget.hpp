// Byte accounting: Budget -> Reservation -> Lease. A budget is the hard limit of one tier; a
// reservation promises part of it under a tag; a lease says that bytes of a reservation are in
// use. Only accounting: where the bytes lie is for the arenas to say.
//
// Ownership: move-only, each gives back what it took when destroyed; a budget outlives its
// reservations, a reservation its leases.
// Thread: any.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "strata/types.hpp"

namespace strata {

class Budget;
class Reservation;

class [[nodiscard]] Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  Bytes size() const { return size_; }

 private:
  friend class Reservation;
  Lease(Reservation* reservation, Bytes size) : reservation_(reservation), size_(size) {}
  void give_back();

  Reservation* reservation_ = nullptr;
  Bytes size_;
};

// Not movable: leases refer to it.
class [[nodiscard]] Reservation {
 public:
  // Throws Error(budget_exceeded) with the tier, what was asked, what is left and the smallest
  // budget that would do.
  Reservation(Budget& budget, std::string tag, Bytes size);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Pre (asserted): the reservation has `size` bytes left.
  Lease lease(Bytes size);

  const std::string& tag() const { return tag_; }
  Bytes size() const { return size_; }
  Bytes in_use() const;

 private:
  friend class Lease;
  void give_back(Bytes size);

  Budget& budget_;
  std::string tag_;
  Bytes size_;
  Bytes in_use_;  // guarded by budget_.mutex_
};

class Budget {
 public:
  Budget(Tier tier, Bytes limit) : tier_(tier), limit_(limit) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  Tier tier() const { return tier_; }
  Bytes limit() const { return limit_; }
  Bytes reserved() const;
  Bytes in_use() const;
  Bytes peak_in_use() const;
  // Reserved bytes by tag.
  std::map<std::string, Bytes> reservations() const;

 private:
  friend class Reservation;

  const Tier tier_;
  const Bytes limit_;

  mutable std::mutex mutex_;
  Bytes reserved_;  // guarded by mutex_, as all below
  Bytes in_use_;
  Bytes peak_in_use_;
  std::map<std::string, Bytes> by_tag_;
};

}  // namespace strata
