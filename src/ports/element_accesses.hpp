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
void visit_sums(const double* block_sums, const std::uint32_t* nonfinite, std::uint64_t count_elems,
                Visit& visit) {
  const std::uint64_t blocks = (count_elems + kBlockElems - 1) / kBlockElems;
  visit(range(nonfinite, 0, 1, Bytes{sizeof(*nonfinite)}, false));
  visit(range(nonfinite, 0, 1, Bytes{sizeof(*nonfinite)}, true));
  visit(range(block_sums, 0, blocks, Bytes{sizeof(*block_sums)}, true));
}

template <class Visit>
void visit_op(const AccumulateOp& op, Visit& visit) {
  const Bytes fp32 = size_of(DType::fp32);
  visit(range(op.gradient, 0, op.count_elems, size_of(op.gradient_dtype), false));
  if (!op.overwrite) visit(range(op.accumulator, 0, op.count_elems, fp32, false));
  visit(range(op.accumulator, 0, op.count_elems, fp32, true));
  if (op.block_sums != nullptr) visit_sums(op.block_sums, op.nonfinite, op.count_elems, visit);
}

template <class Visit>
void visit_op(const GradientStatsOp& op, Visit& visit) {
  visit(range(op.gradient, 0, op.count_elems, size_of(op.gradient_dtype), false));
  visit_sums(op.block_sums, op.nonfinite, op.count_elems, visit);
}

template <class Visit>
void visit_op(const UpdateOp& op, Visit& visit) {
  for (const bool writes : {false, true}) {
    for (const UpdateRun& run : op.runs) {
      const auto visit_run = [&](const void* array, DType dtype) {
        if (array == nullptr) return;
        visit(range(array, run.begin_elems, run.count_elems, size_of(dtype), writes));
      };
      visit_run(op.weights, op.weights_dtype);
      for (std::size_t k = 0; k < moments_of(op.rule); ++k) {
        visit_run(op.moments[k], op.moments_dtype);
      }
      if (writes) {
        visit_run(op.param, op.param_dtype);
      } else {
        visit_run(op.gradient, op.gradient_dtype);
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
