// First-fit allocation of pieces inside one range: the trainer's scratch in what the floor leaves
// of the device. Scratch is taken a few times at start-up, so simple and predictable beats fast.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>

#include "strata/types.hpp"

namespace strata {

class RangeAllocator {
 public:
  RangeAllocator() = default;
  explicit RangeAllocator(std::span<std::byte> range);

  // `size` bytes, rounded up to 256; empty when no hole is large enough.
  std::optional<std::span<std::byte>> allocate(Bytes size);
  // Pre (asserted): `piece` came from allocate().
  void release(std::span<std::byte> piece);
  Bytes largest_hole() const;

 private:
  std::map<std::byte*, std::size_t> holes_;  // start -> length; never adjacent
};

}  // namespace strata
