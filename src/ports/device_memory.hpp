// What devices check about the memory that they are handed: pointers into the arena, and host
// memory that was registered. Addresses only; nothing is dereferenced.
// Thread: as plain values; the owner locks.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string_view>

#include "strata/types.hpp"

namespace strata {

// Whether [data, data + size) lies inside `memory`. True for an empty range anywhere.
bool contains(std::span<const std::byte> memory, const void* data, Bytes size);

// Asserts that the bytes lie in the arena of device `name`; `what` begins the message.
void require_in_arena(std::span<const std::byte> arena, std::string_view name, const void* data,
                      Bytes size, std::string_view what);

// Ranges of host memory that were registered, none of which overlap.
class RegisteredRanges {
 public:
  // Asserts that no byte is registered already.
  void add(std::span<const std::byte> memory);
  // Asserts that exactly this range was added.
  void remove(std::span<const std::byte> memory);

  // Whether one range holds all these bytes.
  bool contain(const void* data, Bytes size) const;

  // Start and size of each.
  const std::map<const std::byte*, std::size_t>& all() const { return ranges_; }
  void clear() { ranges_.clear(); }

 private:
  std::map<const std::byte*, std::size_t> ranges_;
};

}  // namespace strata
