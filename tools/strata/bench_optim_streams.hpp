// Loops that touch what an update touches and compute nothing: the rate that memory allows it. And
// the passes of an update that is not fused. Plain loops that the compiler turns into vector code.
// Thread: any. Elements [begin, end) of each array.
#pragma once

#include <cstdint>

#include "strata/element_ops.hpp"

namespace strata::tool {

// Adds this to what it reads before it writes it. The compiler cannot know that it is 0, so that it
// loads and stores, and the values stay what they were.
struct Nothing {
  std::uint32_t value = 0;
};

// Reads the gradient, reads and writes weights and moments in place, and writes the parameter, each
// of them as bits of its width.
void stream_as(const UpdateOp& op, std::uint64_t begin, std::uint64_t end, Nothing nothing);

// values[i] = values[i] + 0
void add_in_place(float* values, std::uint64_t begin, std::uint64_t end, Nothing nothing);
// values[i] = values[i] * factor
void scale(float* values, float factor, std::uint64_t begin, std::uint64_t end);
// to[i] = from[i] in bf16 or fp16, rounded to nearest even.
void narrow(void* to, DType dtype, const float* from, std::uint64_t begin, std::uint64_t end);

}  // namespace strata::tool
