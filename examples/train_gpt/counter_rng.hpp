// Random numbers as a pure function of a key and an index (SplitMix64: Steele, Lea, Flood, "Fast
// splittable pseudorandom number generators", 2014), so that weights and batches do not depend on
// which rank draws them, in which order or in how many pieces. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace train_gpt::counter_rng {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Both a draw and the way to derive a key from a key: chained calls name a point of many axes.
constexpr std::uint64_t at(std::uint64_t key, std::uint64_t index) {
  return mix(mix(key + kGolden) + (index + 1) * kGolden);
}

constexpr std::uint64_t at(std::uint64_t key, std::string_view name) {
  key = at(key, name.size());
  for (const char c : name) key = at(key, static_cast<unsigned char>(c));
  return key;
}

// Uniform in (0, 1): never 0, so that its logarithm is finite.
constexpr double uniform(std::uint64_t key, std::uint64_t index) {
  return (static_cast<double>(at(key, index) >> 12) + 0.5) * 0x1p-52;
}

// Uniform in [0, bound). Pre: bound > 0. The bias is below bound / 2^64.
constexpr std::uint64_t below(std::uint64_t key, std::uint64_t index, std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(at(key, index)) * bound) >> 64);
}

}  // namespace train_gpt::counter_rng
