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

}  // namespace strata
