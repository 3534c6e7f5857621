// How far the kernels are from their documented expressions (include/strata/element_ops.hpp),
// evaluated in float64 from the same inputs and the same float32 coefficients. Thread: any.
#pragma once

#include <vector>

#include "bench_optim_plan.hpp"
#include "bench_optim_results.hpp"

namespace strata::tool {

// Over a million random elements: half as training has them, half with magnitudes from 2^-40 to
// 2^40 (fp16 gradients: what the type holds), a few zeros. Nothing overflows or is subnormal.
//
// The bound of a state is two roundings (2 x 2^-24) of the largest operand of the sums that form
// it. Operands of a sum that is multiplied or divided afterwards count as what is left of them: in
// `w -= step * m1 / d` those of m1 step / d times. What stands under a root does not count, nor
// that a quotient takes six roundings, so that a fraction above 1 is possible: it tells how many
// roundings there are. A state that rests in 16 bits was rounded once more before it can be looked
// at: half a unit in its last place is added to its bound. Blocks.
std::vector<StateError> largest_errors(const KernelCase& what);

}  // namespace strata::tool
