// Floats for tests of arithmetic, drawn by a seed: the sizes that training sees, any other size,
// and the corners of the formats.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/random_model.hpp"

namespace strata::test {

// Uniform in [-1, 1).
inline float unit_float(RandomStream& random) {
  return static_cast<float>(2 * random.uniform() - 1);
}

// Of either sign, its exponent uniform in [lowest, highest].
inline float float_between(RandomStream& random, int lowest, int highest) {
  const auto exponents = static_cast<std::uint64_t>(highest - lowest + 1);
  const int exponent = lowest + static_cast<int>(random.below(exponents));
  const auto magnitude = static_cast<float>(std::ldexp(1 + random.uniform(), exponent));
  return random.below(2) == 0 ? magnitude : -magnitude;
}

inline float any_finite_float(RandomStream& random) {
  for (;;) {
    const auto bits = static_cast<std::uint32_t>(random.below(std::uint64_t{1} << 32));
    const auto value = std::bit_cast<float>(bits);
    if (std::isfinite(value)) return value;
  }
}

inline float corner_float(RandomStream& random) {
  using Limits = std::numeric_limits<float>;
  static constexpr std::array kMagnitudes = {
      0.0F,          Limits::denorm_min(), Limits::min() - Limits::denorm_min(),
      Limits::min(), Limits::max(),
      0x1.FEp127F,  // the largest of bf16
      0x1p-25F,     // rounds to zero in fp16, a tie
      0x1p-24F,     // the smallest of fp16
      65504.0F,     // the largest of fp16
      65520.0F,     // rounds to infinity in fp16
      1.0F,
      1.00390625F,  // a tie in bf16
  };
  const auto subnormal = std::bit_cast<float>(static_cast<std::uint32_t>(random.below(1U << 23)));
  const std::uint64_t pick = random.below(kMagnitudes.size() + 2);
  const float magnitude = pick < kMagnitudes.size() ? kMagnitudes[pick] : subnormal;
  return random.below(2) == 0 ? magnitude : -magnitude;
}

// Half of them ordinary, so that most results are numbers.
inline float hostile_float(RandomStream& random) {
  switch (random.below(8)) {
    case 0: return corner_float(random);
    case 1: return any_finite_float(random);
    case 2:
    case 3: return float_between(random, -40, 40);
    default: return unit_float(random);
  }
}

}  // namespace strata::test
