// The arithmetic of one element, written once for host and device. Everything that decides bits
// stands here: conversions, the optimizers' expressions, the terms of canonical sums. Plain IEEE
// float32 with named fma; compiled without contraction (-ffp-contract=off, nvcc --fmad=false), so
// that every compiler, vector width and device computes the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "strata/element_ops.hpp"
#include "strata/types.hpp"

#if defined(__CUDACC__)
#define STRATA_HOST_DEVICE __host__ __device__
#else
#define STRATA_HOST_DEVICE
#endif

namespace strata::element {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

STRATA_HOST_DEVICE inline float to_float(float value) { return value; }

STRATA_HOST_DEVICE inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

STRATA_HOST_DEVICE inline float to_float(Fp16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t exponent_and_fraction = value.bits & 0x7FFFU;
  if (exponent_and_fraction >= 0x7C00U) {  // inf, NaN
    return std::bit_cast<float>(sign | 0x7F800000U | ((exponent_and_fraction & 0x3FFU) << 13));
  }
  if (exponent_and_fraction < 0x0400U) {  // zero, subnormal: fraction * 2^-24 is exact
    const float magnitude = static_cast<float>(exponent_and_fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent_and_fraction << 13) + (112U << 23)));
}

template <class T>
STRATA_HOST_DEVICE T from_float(float value);

template <>
STRATA_HOST_DEVICE inline float from_float<float>(float value) {
  return value;
}

template <>
STRATA_HOST_DEVICE inline Bf16 from_float<Bf16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return Bf16{static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

template <>
STRATA_HOST_DEVICE inline Fp16 from_float<Fp16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t result = 0;
  if (magnitude > 0x7F800000U) {
    result = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    result = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: the addition rounds at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    result = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    result = (magnitude - (112U << 23) + 0xFFFU + odd) >> 13;
  }
  return Fp16{static_cast<std::uint16_t>(sign | result)};
}

STRATA_HOST_DEVICE inline bool is_nonfinite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7F800000U) == 0x7F800000U;
}

// What rests in `dtype` at `array`, widened, and a value rounded to it.
STRATA_HOST_DEVICE inline float load(const void* array, DType dtype, std::uint64_t index) {
  switch (dtype) {
    case DType::bf16: return to_float(static_cast<const Bf16*>(array)[index]);
    case DType::fp16: return to_float(static_cast<const Fp16*>(array)[index]);
    case DType::fp32: break;
  }
  return static_cast<const float*>(array)[index];
}

STRATA_HOST_DEVICE inline void store(void* array, DType dtype, std::uint64_t index, float value) {
  switch (dtype) {
    case DType::bf16: static_cast<Bf16*>(array)[index] = from_float<Bf16>(value); return;
    case DType::fp16: static_cast<Fp16*>(array)[index] = from_float<Fp16>(value); return;
    case DType::fp32: break;
  }
  static_cast<float*>(array)[index] = value;
}

// The arithmetic of update_rules-inl.hpp for one element.
struct ScalarMath {
  STRATA_HOST_DEVICE static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  STRATA_HOST_DEVICE static float fms(float a, float b, float c) { return std::fma(a, b, -c); }
  STRATA_HOST_DEVICE static float fnma(float a, float b, float c) { return std::fma(-a, b, c); }
  STRATA_HOST_DEVICE static float sqrt(float a) { return std::sqrt(a); }
  STRATA_HOST_DEVICE static float sign(float a) {
    return static_cast<float>(a > 0.0F) - static_cast<float>(a < 0.0F);
  }
};

#define STRATA_RULE STRATA_HOST_DEVICE inline
#include "base/update_rules-inl.hpp"
#undef STRATA_RULE

// A canonical sum of a block: sixteen interleaved partial sums, folded pairwise. A fixed order
// that vector units of any width up to sixteen lanes, and sixteen threads, can follow. The order is
// part of the result (docs/determinism.md).
inline constexpr std::uint64_t kSumLanes = 16;

// The sum of squares of elements lane, lane + kSumLanes, ... below `count`, in this order;
// *nonfinite becomes 1 when one of them is.
template <class T>
STRATA_HOST_DEVICE double lane_sum(const T* gradient, std::uint64_t count, std::uint64_t lane,
                                   std::uint32_t* nonfinite) {
  double sum = 0;
  for (std::uint64_t i = lane; i < count; i += kSumLanes) {
    const float g = to_float(gradient[i]);
    *nonfinite |= is_nonfinite(g) ? 1U : 0U;
    sum += static_cast<double>(g) * static_cast<double>(g);
  }
  return sum;
}

// Folds the sums of all lanes; uses them up.
STRATA_HOST_DEVICE inline double fold_lanes(double* lanes) {
  for (std::uint64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (std::uint64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Calls `body` with a null pointer of the C++ type that stands for `dtype`. Host only.
template <class Body>
void with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::fp32: return body(static_cast<float*>(nullptr));
    case DType::bf16: return body(static_cast<Bf16*>(nullptr));
    case DType::fp16: return body(static_cast<Fp16*>(nullptr));
  }
  STRATA_ASSERT(false, "unknown dtype");
}

}  // namespace strata::element
