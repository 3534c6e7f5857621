// Element ops on vector units of the host: compiled for AVX2 and for AVX-512, chosen when the
// program runs. The same bits as element_bodies.hpp, which defines what an op does.
// Thread: any. Pre: as element_ops.hpp; all memory is host-addressable.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "strata/element_ops.hpp"

namespace strata::host_kernels {

// Elements [begin, end) of the tile.
void update(const UpdateOp& op, std::uint64_t begin_elems, std::uint64_t end_elems);
void accumulate(const AccumulateOp& op);
void sum(const GradientStatsOp& op);

// The instructions in use: "AVX2", "AVX3" (AVX-512).
std::string_view instruction_set();

// For tests: calls `body` once with each set of instructions that this machine has in use.
void for_each_instruction_set(void (*body)(std::string_view name));

}  // namespace strata::host_kernels
