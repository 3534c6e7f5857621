// The byte ranges that an element op touches: every range it reads, then every range it writes. A
// range that is updated in place is told twice. Devices use it to check pointers and order.
#pragma once

#include <variant>

#include "strata/device.hpp"
#include "strata/element_ops.hpp"
#include "strata/types.hpp"

namespace strata {
namespace element_accesses {

inline Access range(const void* array, std::uint64_t begin_elems, std::uint64_t count_elems,
                    Bytes elem_size, bool writes) {
  const auto* data = static_cast<const std::byte*>(array) + begin_elems * elem_size.value;
  return Access{data, count_elems * elem_size, writes};
}

template <class Visit>
void visit_op(const AccumulateOp& op, Visit& visit) {
  const Bytes fp32 = size_of(DType::fp32);
  visit(range(op.gradient, 0, op.count_elems, size_of(op.gradient_dtype), false));
  if (!op.overwrite) visit(range(op.accumulator, 0, op.count_elems, fp32, false));
  visit(range(op.accumulator, 0, op.count_elems, fp32, true));
}

template <class Visit>
void visit_op(const GradientStatsOp& op, Visit& visit) {
  const std::uint64_t blocks = (op.count_elems + kBlockElems - 1) / kBlockElems;
  visit(range(op.gradient, 0, op.count_elems, size_of(op.gradient_dtype), false));
  visit(range(op.nonfinite, 0, 1, Bytes{sizeof(*op.nonfinite)}, false));
  visit(range(op.nonfinite, 0, 1, Bytes{sizeof(*op.nonfinite)}, true));
  visit(range(op.block_sums, 0, blocks, Bytes{sizeof(*op.block_sums)}, true));
}

template <class Visit>
void visit_op(const AdamWOp& op, Visit& visit) {
  const Bytes fp32 = size_of(DType::fp32);
  for (const bool writes : {false, true}) {
    for (const AdamWRun& run : op.runs) {
      for (const float* state : {op.master, op.moment1, op.moment2}) {
        visit(range(state, run.begin_elems, run.count_elems, fp32, writes));
      }
      const void* other = writes ? op.param : op.gradient;
      const DType dtype = writes ? op.param_dtype : op.gradient_dtype;
      if (other != nullptr) {
        visit(range(other, run.begin_elems, run.count_elems, size_of(dtype), writes));
      }
    }
  }
}

template <class Visit>
void visit_op(const ConvertOp& op, Visit& visit) {
  visit(range(op.from, 0, op.count_elems, size_of(op.from_dtype), false));
  visit(range(op.to, 0, op.count_elems, size_of(op.to_dtype), true));
}

}  // namespace element_accesses

// Calls visit(Access) for each range.
template <class Visit>
void for_each_access(const ElementOp& op, Visit&& visit) {
  std::visit([&](const auto& one) { element_accesses::visit_op(one, visit); }, op);
}

}  // namespace strata
