// What one thread of each kernel does, for the compiler of the GPU and for the host alike. A body
// is a plain value that a kernel takes by copy; `index` is the element that the thread works on.
// The arithmetic itself is base/element.hpp.
#pragma once

#include <cstdint>

#include "base/element.hpp"
#include "strata/element_ops.hpp"

namespace strata::cuda {

template <class Gradient>
struct AccumulateBody {
  float* accumulator;
  const Gradient* gradient;
  bool overwrite;

  STRATA_HOST_DEVICE void operator()(std::uint64_t index) const {
    const float g = element::to_float(gradient[index]);
    accumulator[index] = overwrite ? g : accumulator[index] + g;
  }
};

template <class To, class From>
struct ConvertBody {
  To* to;
  const From* from;

  STRATA_HOST_DEVICE void operator()(std::uint64_t index) const {
    to[index] = element::from_float<To>(element::to_float(from[index]));
  }
};

// One run; the arrays begin at its first element. `param` may be null.
template <class Gradient, class Param>
struct AdamWBody {
  const Gradient* gradient;
  float* master;
  float* moment1;
  float* moment2;
  Param* param;
  AdamWCoefficients coefficients;

  STRATA_HOST_DEVICE void operator()(std::uint64_t index) const {
    const element::AdamWState next =
        element::adamw({master[index], moment1[index], moment2[index]},
                       element::to_float(gradient[index]), coefficients);
    master[index] = next.weight;
    moment1[index] = next.moment1;
    moment2[index] = next.moment2;
    if (param != nullptr) param[index] = element::from_float<Param>(next.weight);
  }
};

// The sums of one canonical block, a thread for each of its element::kSumLanes lanes.
template <class Gradient>
struct BlockSumBody {
  const Gradient* gradient;
  std::uint64_t count_elems;
  double* block_sums;
  std::uint32_t* nonfinite;

  STRATA_HOST_DEVICE double lane(std::uint64_t block, std::uint64_t lane,
                                 std::uint32_t* bad) const {
    const std::uint64_t begin = block * kBlockElems;
    const std::uint64_t left = count_elems - begin;
    return element::lane_sum(gradient + begin, left < kBlockElems ? left : kBlockElems, lane, bad);
  }

  STRATA_HOST_DEVICE void finish(std::uint64_t block, double* lanes) const {
    block_sums[block] = element::fold_lanes(lanes);
  }
};

// Calls visit(body, count_elems) for the bodies of `op`: one for most ops, one for each run of
// AdamW. Host only.
template <class Visit>
void for_each_body(const AccumulateOp& op, Visit&& visit) {
  element::with_type(op.gradient_dtype, [&]<class G>(G*) {
    visit(AccumulateBody<G>{op.accumulator, static_cast<const G*>(op.gradient), op.overwrite},
          op.count_elems);
  });
}

template <class Visit>
void for_each_body(const ConvertOp& op, Visit&& visit) {
  element::with_type(op.to_dtype, [&]<class To>(To*) {
    element::with_type(op.from_dtype, [&]<class From>(From*) {
      visit(ConvertBody<To, From>{static_cast<To*>(op.to), static_cast<const From*>(op.from)},
            op.count_elems);
    });
  });
}

template <class Visit>
void for_each_body(const AdamWOp& op, Visit&& visit) {
  element::with_type(op.gradient_dtype, [&]<class G>(G*) {
    element::with_type(op.param_dtype, [&]<class P>(P*) {
      for (const AdamWRun& run : op.runs) {
        const std::uint64_t at = run.begin_elems;
        auto* const param = static_cast<P*>(op.param);
        visit(AdamWBody<G, P>{static_cast<const G*>(op.gradient) + at, op.master + at,
                              op.moment1 + at, op.moment2 + at,
                              param == nullptr ? nullptr : param + at, run.coefficients},
              run.count_elems);
      }
    });
  });
}

// The same for the sums, whose grid is made of blocks and lanes.
template <class Visit>
void with_block_sums(const GradientStatsOp& op, Visit&& visit) {
  element::with_type(op.gradient_dtype, [&]<class G>(G*) {
    visit(BlockSumBody<G>{static_cast<const G*>(op.gradient), op.count_elems, op.block_sums,
                          op.nonfinite},
          (op.count_elems + kBlockElems - 1) / kBlockElems);
  });
}

}  // namespace strata::cuda
