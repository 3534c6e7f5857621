// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): a
// counter that is mixed. at(key, i) is a pure function, so that weights and data do not depend on
// which rank draws them.
#pragma once

#include <cstdint>

namespace strata::rng {

constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t at(std::uint64_t key, std::uint64_t index) {
  return mix(mix(key) + (index + 1) * 0x9E3779B97F4A7C15ULL);
}

// Uniform in [0, 1), 53 bits.
constexpr double uniform(std::uint64_t key, std::uint64_t index) {
  return static_cast<double>(at(key, index) >> 11) * 0x1p-53;
}

}  // namespace strata::rng
