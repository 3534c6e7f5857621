#include "strata/element_ops.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/element.hpp"

namespace strata {
namespace {

using element::with_type;

void run(const AccumulateOp& op) {
  with_type(op.gradient_dtype, [&]<class T>(T*) {
    const auto* gradient = static_cast<const T*>(op.gradient);
    if (op.overwrite) {
      for (std::uint64_t i = 0; i < op.count_elems; ++i) {
        op.accumulator[i] = element::to_float(gradient[i]);
      }
    } else {
      for (std::uint64_t i = 0; i < op.count_elems; ++i) {
        op.accumulator[i] += element::to_float(gradient[i]);
      }
    }
  });
}

// element::lane_sum() of all lanes side by side, which vector units follow.
template <class T>
double block_sum(const T* gradient, std::uint64_t count, std::uint32_t& nonfinite) {
  constexpr std::uint64_t kLanes = element::kSumLanes;
  double lanes[kLanes] = {};
  std::uint32_t bad[kLanes] = {};
  const std::uint64_t whole = count / kLanes * kLanes;
  for (std::uint64_t i = 0; i < whole; i += kLanes) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
      const float g = element::to_float(gradient[i + lane]);
      bad[lane] |= static_cast<std::uint32_t>(element::is_nonfinite(g));
      lanes[lane] += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  for (std::uint64_t i = whole; i < count; ++i) {
    const float g = element::to_float(gradient[i]);
    bad[i - whole] |= static_cast<std::uint32_t>(element::is_nonfinite(g));
    lanes[i - whole] += static_cast<double>(g) * static_cast<double>(g);
  }
  for (const std::uint32_t flag : bad) nonfinite |= flag;
  return element::fold_lanes(lanes);
}

void run(const GradientStatsOp& op) {
  with_type(op.gradient_dtype, [&]<class T>(T*) {
    const auto* gradient = static_cast<const T*>(op.gradient);
    for (std::uint64_t begin = 0; begin < op.count_elems; begin += kBlockElems) {
      const std::uint64_t count = std::min(kBlockElems, op.count_elems - begin);
      op.block_sums[begin / kBlockElems] = block_sum(gradient + begin, count, *op.nonfinite);
    }
  });
}

template <class Gradient, class Param>
void adamw_run(const AdamWOp& op, const AdamWRun& run) {
  // Distinct arrays: the compiler may vectorise.
  const auto* __restrict gradient = static_cast<const Gradient*>(op.gradient);
  float* __restrict master = op.master;
  float* __restrict moment1 = op.moment1;
  float* __restrict moment2 = op.moment2;
  auto* __restrict param = static_cast<Param*>(op.param);
  const AdamWCoefficients coefficients = run.coefficients;
  const auto update = [&](std::uint64_t i) {
    const element::AdamWState next = element::adamw({master[i], moment1[i], moment2[i]},
                                                    element::to_float(gradient[i]), coefficients);
    master[i] = next.weight;
    moment1[i] = next.moment1;
    moment2[i] = next.moment2;
    return next.weight;
  };
  const std::uint64_t end = run.begin_elems + run.count_elems;
  if (param == nullptr) {
    for (std::uint64_t i = run.begin_elems; i < end; ++i) update(i);
  } else {
    for (std::uint64_t i = run.begin_elems; i < end; ++i) {
      param[i] = element::from_float<Param>(update(i));
    }
  }
}

void run(const AdamWOp& op) {
  with_type(op.gradient_dtype, [&]<class G>(G*) {
    with_type(op.param_dtype, [&]<class P>(P*) {
      for (const AdamWRun& run : op.runs) {
        STRATA_ASSERT(run.begin_elems + run.count_elems <= op.count_elems,
                      "AdamW run outside its tile");
        adamw_run<G, P>(op, run);
      }
    });
  });
}

void run(const ConvertOp& op) {
  with_type(op.to_dtype, [&]<class To>(To*) {
    with_type(op.from_dtype, [&]<class From>(From*) {
      auto* to = static_cast<To*>(op.to);
      const auto* from = static_cast<const From*>(op.from);
      for (std::uint64_t i = 0; i < op.count_elems; ++i) {
        to[i] = element::from_float<To>(element::to_float(from[i]));
      }
    });
  });
}

}  // namespace

void run_on_host(const AccumulateOp& op) { run(op); }
void run_on_host(const GradientStatsOp& op) { run(op); }
void run_on_host(const AdamWOp& op) { run(op); }
void run_on_host(const ConvertOp& op) { run(op); }
void run_on_host(const ElementOp& op) {
  std::visit([](const auto& one) { run(one); }, op);
}

void convert(void* dst, DType dst_dtype, const void* src, DType src_dtype, std::uint64_t count) {
  run(ConvertOp{dst, dst_dtype, src, src_dtype, count});
}

}  // namespace strata
