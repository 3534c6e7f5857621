// The sum that every CPU collective uses, so that its bits do not depend on the transport: fp32
// additions in rank order, then one rounding to the wire dtype.
// Pure; any thread. Pointers need the alignment of their element only.
#pragma once

#include <cstdint>
#include <span>

#include "strata/types.hpp"

namespace strata {

// out[i] = round(inputs[0][i] + inputs[1][i] + ...), where inputs[r] comes from rank r.
// `out` may be one of the inputs; it must not overlap them otherwise. Pre: one input or more.
void sum_in_rank_order(void* out, std::span<const void* const> inputs, std::uint64_t count_elems,
                       DType dtype);

}  // namespace strata
