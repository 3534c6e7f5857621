#include "bench_optim_streams.hpp"

#include <hwy/highway.h>

#include <cstddef>
#include <type_traits>

#include "base/element.hpp"

HWY_BEFORE_NAMESPACE();
namespace strata::tool {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

struct NoParam {};

// What one loop carries is what one update carries, in the same order.
template <class G, class W, class M, class P, std::size_t kMoments>
void stream(const UpdateOp& op, std::uint64_t begin, std::uint64_t end, Nothing nothing) {
  const auto* __restrict gradient = static_cast<const G*>(op.gradient);
  auto* __restrict weights = static_cast<W*>(op.weights);
  auto* __restrict first = static_cast<M*>(op.moments[0]);
  auto* __restrict second = static_cast<M*>(op.moments[1]);
  auto* __restrict param = static_cast<P*>(op.param);
  for (std::uint64_t i = begin; i < end; ++i) {
    if constexpr (std::is_same_v<P, NoParam>) {
      weights[i] = static_cast<W>(weights[i] + (gradient[i] & nothing.value));
    } else {
      weights[i] = static_cast<W>(weights[i] + nothing.value);
      param[i] = static_cast<P>(gradient[i] + nothing.value);
    }
    if constexpr (kMoments > 0) first[i] = static_cast<M>(first[i] + nothing.value);
    if constexpr (kMoments > 1) second[i] = static_cast<M>(second[i] + nothing.value);
  }
}

template <class Body>
void with_width(DType dtype, Body&& body) {
  if (dtype == DType::fp32) return body(std::uint32_t{});
  return body(std::uint16_t{});
}

template <class G, class W, class M, class P>
void stream_moments(const UpdateOp& op, std::uint64_t begin, std::uint64_t end, Nothing nothing) {
  switch (moments_of(op.rule)) {
    case 0: return stream<G, W, M, P, 0>(op, begin, end, nothing);
    case 1: return stream<G, W, M, P, 1>(op, begin, end, nothing);
    default: return stream<G, W, M, P, 2>(op, begin, end, nothing);
  }
}

}  // namespace

void stream_as(const UpdateOp& op, std::uint64_t begin, std::uint64_t end, Nothing nothing) {
  with_width(op.gradient_dtype, [&]<class G>(G) {
    with_width(op.moments_dtype, [&]<class M>(M) {
      if (op.param != nullptr) {
        stream_moments<G, std::uint32_t, M, std::uint16_t>(op, begin, end, nothing);
      } else {
        with_width(op.weights_dtype,
                   [&]<class W>(W) { stream_moments<G, W, M, NoParam>(op, begin, end, nothing); });
      }
    });
  });
}

void add_in_place(float* values, std::uint64_t begin, std::uint64_t end, Nothing nothing) {
  const auto zero = static_cast<float>(nothing.value);
  for (std::uint64_t i = begin; i < end; ++i) values[i] += zero;
}

void scale(float* values, float factor, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t i = begin; i < end; ++i) values[i] *= factor;
}

namespace {

void narrow_to_bf16(element::Bf16* __restrict to, const float* __restrict from, std::uint64_t begin,
                    std::uint64_t end) {
  for (std::uint64_t i = begin; i < end; ++i) to[i] = element::from_float<element::Bf16>(from[i]);
}

// Compilers do not turn element::from_float<Fp16>() into the instruction that does the same.
void narrow_to_fp16(element::Fp16* to, const float* from, std::uint64_t begin, std::uint64_t end) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  const std::size_t lanes = hn::Lanes(d);
  std::uint64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, from + i)), half,
               reinterpret_cast<hwy::float16_t*>(to + i));
  }
  for (; i < end; ++i) to[i] = element::from_float<element::Fp16>(from[i]);
}

}  // namespace

void narrow(void* to, DType dtype, const float* from, std::uint64_t begin, std::uint64_t end) {
  if (dtype == DType::fp16) {
    narrow_to_fp16(static_cast<element::Fp16*>(to), from, begin, end);
  } else {
    narrow_to_bf16(static_cast<element::Bf16*>(to), from, begin, end);
  }
}

}  // namespace strata::tool
HWY_AFTER_NAMESPACE();
