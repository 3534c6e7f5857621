// The address space of the stand-in GPUs. What cudaMalloc hands out lies in a reservation that
// nobody can read or write; the bytes are in the arena of the device beneath, at the same offset.
// Thread: one at a time, but for the translation of addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "strata/types.hpp"
#include "support/range_map.hpp"

namespace strata::test::standin {

inline AddressRange range_of(const void* data, std::uint64_t size_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + size_bytes};
}

// Addresses without memory behind them.
class Reservation {
 public:
  explicit Reservation(Bytes size);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  std::byte* begin() const { return begin_; }
  bool contains(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= begin_ && at < begin_ + size_.value;
  }

 private:
  const Bytes size_;
  std::byte* begin_ = nullptr;
};

// Places ranges in [0, size): the first gap that fits.
class Allocator {
 public:
  static constexpr Bytes kAlignment{512};  // what cudaMalloc keeps in practice

  explicit Allocator(Bytes size) : size_(size) {}

  // The offset of a range of `size`, rounded up to the alignment; nothing if no gap fits.
  std::optional<Bytes> allocate(Bytes size);
  void free(Bytes offset);
  Bytes used() const { return used_; }

 private:
  const Bytes size_;
  std::map<Bytes, Bytes> ranges_;  // offset -> size
  Bytes used_;
};

}  // namespace strata::test::standin
