#include "memory/checksum.hpp"

// Inlined, so that it is compiled for the instructions of our floor: the library's own entry point
// is built for SSE2 in Debian and runs at half the rate (measured 6.6 against 9.4 GB/s from
// memory).
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <new>

namespace strata {

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

namespace {

XXH3_state_t* state_at(std::byte* bytes) { return reinterpret_cast<XXH3_state_t*>(bytes); }

}  // namespace

Checksum::Checksum(std::uint64_t seed) {
  static_assert(sizeof(XXH3_state_t) == kStateBytes && alignof(XXH3_state_t) == 64);
  XXH3_state_t* const state = new (state_) XXH3_state_t;
  XXH3_INITSTATE(state);  // reset looks at what was there
  XXH3_64bits_reset_withSeed(state_at(state_), seed);
}

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_at(state_), bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const {
  return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state_));
}

}  // namespace strata
