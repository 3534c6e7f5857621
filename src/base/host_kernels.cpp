#include "base/host_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "base/check.hpp"
#include "base/element.hpp"
#include "base/element_bodies.hpp"

// Compiled once for each target by <hwy/foreach_target.h> (Google Highway, "quick reference").
#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming): Highway's name
#define HWY_TARGET_INCLUDE "base/host_kernels.cpp"
#include <hwy/foreach_target.h>
// The order matters to Highway.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strata::host_kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#define STRATA_RULE HWY_INLINE
#include "base/update_rules-inl.hpp"
#undef STRATA_RULE

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

struct VectorMath {
  static HWY_INLINE Vector fma(Vector a, Vector b, Vector c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE Vector fms(Vector a, Vector b, Vector c) { return hn::MulSub(a, b, c); }
  static HWY_INLINE Vector fnma(Vector a, Vector b, Vector c) { return hn::NegMulAdd(a, b, c); }
  static HWY_INLINE Vector sqrt(Vector a) { return hn::Sqrt(a); }
  static HWY_INLINE Vector sign(Vector a) {
    const Floats d;
    const Vector zero = hn::Zero(d);
    return hn::IfThenElse(hn::Gt(a, zero), hn::Set(d, 1.0F),
                          hn::IfThenElseZero(hn::Lt(a, zero), hn::Set(d, -1.0F)));
  }
};

// A vector of D's lanes of floats from what rests at `from`.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const element::Bf16* from) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::Rebind<std::uint32_t, D> wide;
  const auto bits = hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const element::Fp16* from) {
  const hn::Rebind<hwy::float16_t, D> narrow;
  return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
}

// element::from_float<Bf16>() of each lane, in its upper half.
HWY_INLINE auto rounded_to_bf16(Vector value) {
  const hn::Rebind<std::uint32_t, Floats> d;
  const auto bits = hn::BitCast(d, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd);
  const auto quiet_nan = hn::Or(bits, hn::Set(d, 0x400000));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), quiet_nan, rounded);
}

// Two vectors, rounded to where they rest.
HWY_INLINE void store_pair(Vector low, Vector high, float* to) {
  const Floats d;
  hn::StoreU(low, d, to);
  hn::StoreU(high, d, to + hn::Lanes(d));
}

HWY_INLINE void store_pair(Vector low, Vector high, element::Bf16* to) {
  const hn::Repartition<std::uint16_t, Floats> halves;
  const auto packed = hn::ConcatOdd(halves, hn::BitCast(halves, rounded_to_bf16(high)),
                                    hn::BitCast(halves, rounded_to_bf16(low)));
  hn::StoreU(packed, halves, reinterpret_cast<std::uint16_t*>(to));
}

HWY_INLINE void store_pair(Vector low, Vector high, element::Fp16* to) {
  const Floats d;
  const hn::Rebind<hwy::float16_t, Floats> halves;
  auto* const out = reinterpret_cast<hwy::float16_t*>(to);
  hn::StoreU(hn::DemoteTo(halves, low), halves, out);
  hn::StoreU(hn::DemoteTo(halves, high), halves, out + hn::Lanes(d));
}

// Widens or rounds `count` elements. The ends of arrays are the reference's.
template <class T>
void widen(const T* HWY_RESTRICT from, float* HWY_RESTRICT to, std::size_t count) {
  const Floats d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) hn::StoreU(load(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = element::to_float(from[i]);
}

template <class T>
void narrow(const float* HWY_RESTRICT from, T* HWY_RESTRICT to, std::size_t count) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    store_pair(hn::LoadU(d, from + i), hn::LoadU(d, from + i + lanes), to + i);
  }
  for (; i < count; ++i) to[i] = element::from_float<T>(from[i]);
}

HWY_INLINE Coefficients<Vector> broadcast(const UpdateCoefficients& c) {
  const Floats d;
  return {hn::Set(d, c.factor), hn::Set(d, c.decay),       hn::Set(d, c.blend1),
          hn::Set(d, c.blend2), hn::Set(d, c.momentum),    hn::Set(d, c.epsilon),
          hn::Set(d, c.step),   hn::Set(d, c.second_scale)};
}

// A part of a run. The weights are fp32; gradients and moments in the types that most have are
// converted on the way.
template <class G, class M>
struct Part {
  const G* gradient;
  float* weights;
  M* moments[2];
  std::size_t count;
};

template <class Rule, class G, class M>
HWY_INLINE void update_pair(const Part<G, M>& part, std::size_t at,
                            const Coefficients<Vector>& coefficients) {
  const Floats d;
  Vector w[2];
  Vector m[2][Rule::kMoments + 1];  // one too many: there are no empty arrays
  for (std::size_t v = 0; v < 2; ++v) {
    const std::size_t i = at + v * hn::Lanes(d);
    w[v] = hn::LoadU(d, part.weights + i);
    for (std::size_t k = 0; k < Rule::kMoments; ++k) m[v][k] = load(d, part.moments[k] + i);
    Rule::template update<VectorMath>(load(d, part.gradient + i), w[v], m[v], coefficients);
  }
  store_pair(w[0], w[1], part.weights + at);
  for (std::size_t k = 0; k < Rule::kMoments; ++k) {
    store_pair(m[0][k], m[1][k], part.moments[k] + at);
  }
}

template <class Rule, class G, class M>
void update_part(const Part<G, M>& part, const UpdateCoefficients& scalars) {
  constexpr std::size_t kPair = 2 * hn::MaxLanes(Floats());
  const Coefficients<Vector> coefficients = broadcast(scalars);
  const std::size_t whole = part.count / kPair * kPair;
  for (std::size_t i = 0; i < whole; i += kPair) update_pair<Rule>(part, i, coefficients);
  const std::size_t left = part.count - whole;
  if (left == 0) return;
  // The rest in arrays of their own, beside zeros.
  G gradient[kPair] = {};
  float weights[kPair] = {};
  M moments[2][kPair] = {};
  std::copy_n(part.gradient + whole, left, gradient);
  std::copy_n(part.weights + whole, left, weights);
  for (std::size_t k = 0; k < Rule::kMoments; ++k) {
    std::copy_n(part.moments[k] + whole, left, moments[k]);
  }
  update_pair<Rule>(Part<G, M>{gradient, weights, {moments[0], moments[1]}, kPair}, 0,
                    coefficients);
  std::copy_n(weights, left, part.weights + whole);
  for (std::size_t k = 0; k < Rule::kMoments; ++k) {
    std::copy_n(moments[k], left, part.moments[k] + whole);
  }
}

// Elements that are converted at once, where update_pair() does not: what they are converted to
// stays in the first-level cache.
constexpr std::size_t kPartElems = 1024;

// A part of an array as floats: where it stands, or widened into `buffer`.
const float* widened(const void* array, DType dtype, std::uint64_t at, std::size_t count,
                     float* buffer) {
  if (dtype == DType::fp32) return static_cast<const float*>(array) + at;
  if (dtype == DType::bf16) {
    widen(static_cast<const element::Bf16*>(array) + at, buffer, count);
  } else {
    widen(static_cast<const element::Fp16*>(array) + at, buffer, count);
  }
  return buffer;
}

// Rounds floats to where they rest, if that is elsewhere.
void round_to(void* array, DType dtype, std::uint64_t at, std::size_t count, const float* values) {
  if (dtype == DType::bf16) narrow(values, static_cast<element::Bf16*>(array) + at, count);
  if (dtype == DType::fp16) narrow(values, static_cast<element::Fp16*>(array) + at, count);
}

// Elements [begin, end), which one run covers. G: bf16 as it is, or floats that others are widened
// to.
template <class Rule, class G, class M>
void update_run(const UpdateOp& op, const UpdateCoefficients& scalars, std::uint64_t begin,
                std::uint64_t end) {
  float gradients[kPartElems];
  float weights[kPartElems];
  M* const moments[] = {static_cast<M*>(op.moments[0]), static_cast<M*>(op.moments[1])};
  for (std::uint64_t at = begin; at < end; at += kPartElems) {
    const std::size_t count = std::min<std::uint64_t>(kPartElems, end - at);
    Part<G, M> part{};
    part.count = count;
    if constexpr (std::is_same_v<G, float>) {
      part.gradient = widened(op.gradient, op.gradient_dtype, at, count, gradients);
    } else {
      part.gradient = static_cast<const G*>(op.gradient) + at;
    }
    part.weights = const_cast<float*>(widened(op.weights, op.weights_dtype, at, count, weights));
    for (std::size_t k = 0; k < Rule::kMoments; ++k) part.moments[k] = moments[k] + at;
    update_part<Rule>(part, scalars);
    round_to(op.weights, op.weights_dtype, at, count, part.weights);
    if (op.param != nullptr) round_to(op.param, op.param_dtype, at, count, part.weights);
  }
}

template <class Rule, class G, class M>
void update_runs(const UpdateOp& op, std::uint64_t begin, std::uint64_t end) {
  for (const UpdateRun& run : op.runs) {
    const std::uint64_t first = std::max(begin, run.begin_elems);
    const std::uint64_t last = std::min(end, run.begin_elems + run.count_elems);
    if (first < last) update_run<Rule, G, M>(op, run.coefficients, first, last);
  }
}

template <class Rule, class G>
void with_moments(const UpdateOp& op, std::uint64_t begin, std::uint64_t end) {
  if constexpr (Rule::kMoments > 0) {
    if (op.moments_dtype == DType::bf16) return update_runs<Rule, G, element::Bf16>(op, begin, end);
  }
  update_runs<Rule, G, float>(op, begin, end);
}

void update(const UpdateOp& op, std::uint64_t begin, std::uint64_t end) {
  with_rule(op.rule, [&]<class Rule>(Rule*) {
    if (op.gradient_dtype == DType::bf16) {
      with_moments<Rule, element::Bf16>(op, begin, end);
    } else {
      with_moments<Rule, float>(op, begin, end);
    }
  });
}

// The canonical sum of a block: lane sums side by side, as element::lane_sum() orders them. Squares
// of floats are exact in fp64, so that a fused multiply-add rounds as its parts do.
template <class G>
double block_sum(const G* HWY_RESTRICT gradient, std::uint64_t count, std::uint32_t& nonfinite) {
  using Doubles = hn::ScalableTag<double>;
  using Singles = hn::Rebind<float, Doubles>;
  using Bits = hn::Rebind<std::int32_t, Doubles>;
  const Doubles d;
  const Singles singles;
  const Bits bits;
  constexpr std::size_t kLanes = element::kSumLanes;
  constexpr std::size_t kWidth = hn::MaxLanes(Doubles());
  constexpr std::size_t kVectors = kLanes / kWidth;
  hn::Vec<Doubles> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  auto largest = hn::Zero(bits);  // magnitude, as an integer: inf and NaN are above all others
  const auto magnitude = hn::Set(bits, 0x7FFFFFFF);
  const std::uint64_t whole = count / kLanes * kLanes;
  for (std::uint64_t i = 0; i < whole; i += kLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto g = load(singles, gradient + i + v * kWidth);
      largest = hn::Max(largest, hn::And(hn::BitCast(bits, g), magnitude));
      const auto wide = hn::PromoteTo(d, g);
      sums[v] = hn::MulAdd(wide, wide, sums[v]);
    }
  }
  alignas(64) double lanes[kLanes];
  for (std::size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, lanes + v * kWidth);
  alignas(64) std::int32_t magnitudes[kWidth];
  hn::Store(largest, bits, magnitudes);
  for (const std::int32_t one : magnitudes) nonfinite |= one >= 0x7F800000 ? 1U : 0U;
  for (std::uint64_t i = whole; i < count; ++i) {
    const float g = element::to_float(gradient[i]);
    nonfinite |= element::is_nonfinite(g) ? 1U : 0U;
    lanes[i - whole] += static_cast<double>(g) * static_cast<double>(g);
  }
  return element::fold_lanes(lanes);
}

void sum(const GradientStatsOp& op) {
  element::with_type(op.gradient_dtype, [&]<class G>(G*) {
    const auto* gradient = static_cast<const G*>(op.gradient);
    for (std::uint64_t begin = 0; begin < op.count_elems; begin += kBlockElems) {
      const std::uint64_t count = std::min(kBlockElems, op.count_elems - begin);
      op.block_sums[begin / kBlockElems] = block_sum(gradient + begin, count, *op.nonfinite);
    }
  });
}

template <class G>
void add(float* HWY_RESTRICT to, const G* HWY_RESTRICT gradient, std::uint64_t count,
         bool overwrite) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Vector g = load(d, gradient + i);
    hn::StoreU(overwrite ? g : hn::Add(hn::LoadU(d, to + i), g), d, to + i);
  }
  const element::AccumulateBody<G> rest{to, gradient, overwrite};
  for (; i < count; ++i) rest(i);
}

// Block by block, so that the sums find what was added in the cache.
void accumulate(const AccumulateOp& op) {
  element::with_type(op.gradient_dtype, [&]<class G>(G*) {
    const auto* gradient = static_cast<const G*>(op.gradient);
    for (std::uint64_t begin = 0; begin < op.count_elems; begin += kBlockElems) {
      const std::uint64_t count = std::min(kBlockElems, op.count_elems - begin);
      float* const to = op.accumulator + begin;
      add(to, gradient + begin, count, op.overwrite);
      if (op.block_sums == nullptr) continue;
      op.block_sums[begin / kBlockElems] = block_sum(to, count, *op.nonfinite);
    }
  });
}

std::string_view instruction_set() { return hwy::TargetName(HWY_TARGET); }

}  // namespace strata::host_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace strata::host_kernels {

HWY_EXPORT(update);
HWY_EXPORT(accumulate);
HWY_EXPORT(sum);
HWY_EXPORT(instruction_set);

void update(const UpdateOp& op, std::uint64_t begin_elems, std::uint64_t end_elems) {
  HWY_DYNAMIC_DISPATCH(update)(op, begin_elems, end_elems);
}

void accumulate(const AccumulateOp& op) { HWY_DYNAMIC_DISPATCH(accumulate)(op); }

void sum(const GradientStatsOp& op) { HWY_DYNAMIC_DISPATCH(sum)(op); }

std::string_view instruction_set() { return HWY_DYNAMIC_DISPATCH(instruction_set)(); }

void for_each_instruction_set(void (*body)(std::string_view name)) {
  const std::uint32_t all = static_cast<std::uint32_t>(hwy::SupportedTargets() & HWY_TARGETS);
  for (std::uint32_t rest = all; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & (~rest + 1));
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(instruction_set());
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace strata::host_kernels

#endif  // HWY_ONCE
