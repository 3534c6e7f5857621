// Element functions that vectorise without -ffast-math and give the same bits at every vector
// width. Any thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace train_gpt {

// e^x within 2 ulp for x in [-87, 88]; saturates outside. Cody-Waite reduction to
// |r| <= ln(2) / 2, then the Taylor polynomial, whose remainder r^7 / 5040 is below 2^-23.
inline float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  x = std::min(std::max(x, -87.0F), 88.0F);
  // Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits.
  constexpr float kRounder = 0x1.8p23F;
  const float shifted = std::fma(x, kLog2E, kRounder);
  const float n = shifted - kRounder;
  const float r = std::fma(-n, kLn2Low, std::fma(-n, kLn2High, x));
  float p = 1.0F / 720.0F;
  p = std::fma(p, r, 1.0F / 120.0F);
  p = std::fma(p, r, 1.0F / 24.0F);
  p = std::fma(p, r, 1.0F / 6.0F);
  p = std::fma(p, r, 0.5F);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  const std::uint32_t two_to_n = (std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3F800000U;
  return p * std::bit_cast<float>(two_to_n);
}

// The largest of `count` >= 1 values; NaN is passed over. In lanes, because compilers do not
// reorder a chain of comparisons.
inline float row_maximum(const float* values, std::uint64_t count) {
  constexpr std::uint64_t kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, values[0]);
  const std::uint64_t whole = count / kLanes * kLanes;
  for (std::uint64_t i = 0; i < whole; i += kLanes) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    }
  }
  for (std::uint64_t i = whole; i < count; ++i) {
    lanes[i - whole] = std::max(lanes[i - whole], values[i]);
  }
  return *std::max_element(lanes, lanes + kLanes);
}

inline float fast_sigmoid(float x) { return 1.0F / (1.0F + fast_exp(-x)); }

}  // namespace train_gpt
