// The checksum of a tile: XXH3 with 64 bits (xxHash, https://github.com/Cyan4973/xxHash), which
// reads memory about as fast as it comes. The seed tells tiles and versions apart, so that a tile
// in the place of another, or an older version of the same one, does not pass.
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace strata {

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed);

// The same of bytes that come in parts.
class Checksum {
 public:
  explicit Checksum(std::uint64_t seed);
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  static constexpr std::size_t kStateBytes = 576;  // of XXH3_state_t
  alignas(64) std::byte state_[kStateBytes];
};

}  // namespace strata
