// Checksums of bytes that come in parts are those of the whole.
#include "memory/checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/rng.hpp"

namespace strata::test {
namespace {

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(rng::at(3, i));
  return bytes;
}

std::uint64_t in_parts(const std::vector<std::byte>& bytes, std::uint64_t seed, std::size_t part) {
  Checksum sum(seed);
  for (std::size_t at = 0; at < bytes.size(); at += part) {
    sum.add({bytes.data() + at, std::min(part, bytes.size() - at)});
  }
  return sum.value();
}

TEST(Checksum, DoesNotDependOnTheParts) {
  for (const std::size_t size : {0, 1, 240, 241, 1024, 4096, 100'003}) {
    const std::vector<std::byte> bytes = random_bytes(size);
    for (const std::uint64_t seed : {0ULL, 1ULL, 0x123456789ABCDEFULL}) {
      for (const std::size_t part : {7, 64, 255, 1024, 32768}) {
        EXPECT_EQ(in_parts(bytes, seed, part), checksum(bytes, seed)) << size << " by " << part;
      }
    }
  }
}

// Where another one stood, of the same seed, that something has written over since.
TEST(Checksum, DoesNotLookAtWhatWasInItsMemory) {
  const std::vector<std::byte> bytes = random_bytes(5000);
  for (const int rubbish : {0x00, 0x5A, 0xFF}) {
    alignas(Checksum) std::byte memory[sizeof(Checksum)];
    auto* sum = new (memory) Checksum(77);
    sum->~Checksum();
    std::memset(memory, rubbish, 256);
    sum = new (memory) Checksum(77);
    sum->add(bytes);
    EXPECT_EQ(sum->value(), checksum(bytes, 77)) << rubbish;
    sum->~Checksum();
  }
}

}  // namespace
}  // namespace strata::test
