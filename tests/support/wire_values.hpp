// Values on the wire and the sums that collectives owe, computed without the code under test:
// decoding and rounding in double arithmetic, additions in float, in rank order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/rng.hpp"
#include "strata/types.hpp"

namespace strata::test {

struct WireFormat {
  int fraction_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

inline WireFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return {23, 8};
    case DType::bf16: return {7, 8};
    case DType::fp16: return {10, 5};
  }
  return {};
}

inline double decode_wire(std::uint32_t bits, DType dtype) {
  const WireFormat format = format_of(dtype);
  const std::uint32_t fraction = bits & ((1U << format.fraction_bits) - 1);
  const auto exponent =
      static_cast<int>((bits >> format.fraction_bits) & ((1U << format.exponent_bits) - 1));
  const double sign = (bits >> (format.fraction_bits + format.exponent_bits)) != 0 ? -1 : 1;
  const int least = 1 - format.bias() - format.fraction_bits;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return fraction == 0 ? sign * INFINITY : NAN;
  }
  if (exponent == 0) return sign * std::ldexp(fraction, least);
  return sign * std::ldexp(fraction + (1U << format.fraction_bits), exponent - 1 + least);
}

// The nearest value of the format, ties to even; infinity beyond its range.
inline double round_to_wire(double value, DType dtype) {
  if (value == 0 || !std::isfinite(value)) return value;
  const WireFormat format = format_of(dtype);
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [0.5, 1) * 2^exponent
  const int least = 1 - format.bias() - format.fraction_bits;
  const int unit = std::max(exponent - 1 - format.fraction_bits, least);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  const double limit = std::ldexp(1.0, format.bias() + 1);
  return std::fabs(rounded) >= limit ? std::copysign(INFINITY, value) : rounded;
}

// A pseudorandom finite value of either sign; exponents vary enough that sums round.
inline std::uint32_t random_wire(DType dtype, std::uint64_t key, std::uint64_t index) {
  const WireFormat format = format_of(dtype);
  const std::uint64_t draw = rng::at(key, index);
  const auto fraction = static_cast<std::uint32_t>(draw) & ((1U << format.fraction_bits) - 1);
  const auto exponent = static_cast<std::uint32_t>(format.bias() - 5 + (draw >> 32) % 11);
  const auto sign = static_cast<std::uint32_t>(draw >> 63);
  return (sign << (format.fraction_bits + format.exponent_bits)) |
         (exponent << format.fraction_bits) | fraction;
}

inline void store_wire(std::vector<std::byte>& bytes, std::uint64_t index, std::uint32_t bits,
                       DType dtype) {
  const std::uint64_t width = size_of(dtype).value;
  std::memcpy(bytes.data() + index * width, &bits, width);  // little endian, as the library is
}

inline std::uint32_t load_wire(const std::vector<std::byte>& bytes, std::uint64_t index,
                               DType dtype) {
  const std::uint64_t width = size_of(dtype).value;
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes.data() + index * width, width);
  return bits;
}

// The sum of one element over ranks, as it travels: inputs are wire values in rank order.
inline double expected_sum(const std::vector<std::uint32_t>& inputs, DType dtype) {
  auto sum = static_cast<float>(decode_wire(inputs[0], dtype));
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    sum += static_cast<float>(decode_wire(inputs[r], dtype));
  }
  return round_to_wire(sum, dtype);
}

}  // namespace strata::test
