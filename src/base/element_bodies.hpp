// Element ops one element at a time: what a thread of a GPU does, what the host does at the ends of
// arrays, and the reference that vector code is compared with. A body is a plain value that a
// kernel takes by copy; `index` is the element that it works on. The arithmetic is
// base/element.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/element.hpp"
#include "strata/element_ops.hpp"

namespace strata::element {

// The arrays of an UpdateOp.
struct UpdateArrays {
  const void* gradient;
  void* weights;
  void* moments[2];
  void* param;
  DType gradient_dtype, weights_dtype, moments_dtype, param_dtype;
};

inline UpdateArrays arrays_of(const UpdateOp& op) {
  return {op.gradient,      op.weights,        {op.moments[0], op.moments[1]},
          op.param,         op.gradient_dtype, op.weights_dtype,
          op.moments_dtype, op.param_dtype};
}

inline Coefficients<float> coefficients_of(const UpdateCoefficients& c) {
  return {c.factor, c.decay, c.blend1, c.blend2, c.momentum, c.epsilon, c.step, c.second_scale};
}

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

// One run; the arrays begin at the tile's first element.
template <class Rule>
struct UpdateBody {
  UpdateArrays arrays;
  Coefficients<float> coefficients;

  STRATA_HOST_DEVICE void operator()(std::uint64_t index) const {
    float w = load(arrays.weights, arrays.weights_dtype, index);
    float m[Rule::kMoments + 1];  // one too many: there are no empty arrays
    for (std::size_t k = Rule::kMoments; k-- > 0;) {
      m[k] = load(arrays.moments[k], arrays.moments_dtype, index);
    }
    const float g = load(arrays.gradient, arrays.gradient_dtype, index);
    Rule::template update<ScalarMath>(g, w, m, coefficients);
    store(arrays.weights, arrays.weights_dtype, index, w);
    for (std::size_t k = Rule::kMoments; k-- > 0;) {
      store(arrays.moments[k], arrays.moments_dtype, index, m[k]);
    }
    if (arrays.param != nullptr) store(arrays.param, arrays.param_dtype, index, w);
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

// Calls visit(body, begin, end) for the bodies of `op` and the elements that each is for: one for
// most ops, one for each run of an update. Sums, whose grid is made of blocks and lanes, are
// with_block_sums()'s. Host only.
template <class Visit>
void for_each_body(const AccumulateOp& op, Visit&& visit) {
  with_type(op.gradient_dtype, [&]<class G>(G*) {
    visit(AccumulateBody<G>{op.accumulator, static_cast<const G*>(op.gradient), op.overwrite},
          std::uint64_t{0}, op.count_elems);
  });
}

template <class Visit>
void for_each_body(const ConvertOp& op, Visit&& visit) {
  with_type(op.to_dtype, [&]<class To>(To*) {
    with_type(op.from_dtype, [&]<class From>(From*) {
      visit(ConvertBody<To, From>{static_cast<To*>(op.to), static_cast<const From*>(op.from)},
            std::uint64_t{0}, op.count_elems);
    });
  });
}

template <class Visit>
void for_each_body(const UpdateOp& op, Visit&& visit) {
  with_rule(op.rule, [&]<class Rule>(Rule*) {
    for (const UpdateRun& run : op.runs) {
      visit(UpdateBody<Rule>{arrays_of(op), coefficients_of(run.coefficients)}, run.begin_elems,
            run.begin_elems + run.count_elems);
    }
  });
}

// Calls visit(body, blocks).
template <class Visit>
void with_block_sums(const GradientStatsOp& op, Visit&& visit) {
  with_type(op.gradient_dtype, [&]<class G>(G*) {
    visit(BlockSumBody<G>{static_cast<const G*>(op.gradient), op.count_elems, op.block_sums,
                          op.nonfinite},
          (op.count_elems + kBlockElems - 1) / kBlockElems);
  });
}

// The sums that an accumulation computes as well; none without block_sums.
inline GradientStatsOp sums_of(const AccumulateOp& op) {
  return {op.accumulator, DType::fp32, op.block_sums == nullptr ? 0 : op.count_elems, op.block_sums,
          op.nonfinite};
}

}  // namespace strata::element
