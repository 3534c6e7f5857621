#include "strata/element_ops.hpp"

#include "base/check.hpp"
#include "base/element.hpp"
#include "base/host_kernels.hpp"

namespace strata {
namespace {

void run(const AccumulateOp& op) { host_kernels::accumulate(op); }
void run(const GradientStatsOp& op) { host_kernels::sum(op); }
void run(const UpdateOp& op) { run_on_host(op, 0, op.count_elems); }

void run(const ConvertOp& op) {
  element::with_type(op.to_dtype, [&]<class To>(To*) {
    element::with_type(op.from_dtype, [&]<class From>(From*) {
      auto* to = static_cast<To*>(op.to);
      const auto* from = static_cast<const From*>(op.from);
      for (std::uint64_t i = 0; i < op.count_elems; ++i) {
        to[i] = element::from_float<To>(element::to_float(from[i]));
      }
    });
  });
}

}  // namespace

std::string_view name_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::adamw: return "adamw";
    case UpdateRule::adam: return "adam";
    case UpdateRule::sgd: return "sgd";
    case UpdateRule::momentum: return "momentum";
    case UpdateRule::nesterov: return "nesterov";
    case UpdateRule::adagrad: return "adagrad";
    case UpdateRule::lion: return "lion";
  }
  return "unknown";
}

std::size_t moments_of(UpdateRule rule) {
  std::size_t moments = 0;
  element::with_rule(rule, [&]<class Rule>(Rule*) { moments = Rule::kMoments; });
  return moments;
}

void run_on_host(const AccumulateOp& op) { run(op); }
void run_on_host(const GradientStatsOp& op) { run(op); }
void run_on_host(const UpdateOp& op) { run(op); }
void run_on_host(const ConvertOp& op) { run(op); }
void run_on_host(const ElementOp& op) {
  std::visit([](const auto& one) { run(one); }, op);
}

void check(const UpdateOp& op) {
  STRATA_ASSERT(op.moments_dtype != DType::fp16, "moments of fp16");
  STRATA_ASSERT(
      op.param == nullptr || (op.weights_dtype == DType::fp32 && op.param_dtype != DType::fp32),
      "parameters beside masters must have 16 bits, and their masters 32");
  std::uint64_t end = 0;
  for (const UpdateRun& run : op.runs) {
    STRATA_ASSERT(run.begin_elems >= end, "runs of an update that overlap or are out of order");
    end = run.begin_elems + run.count_elems;
  }
  STRATA_ASSERT(end <= op.count_elems, "a run of an update outside its tile");
}

void run_on_host(const UpdateOp& op, std::uint64_t begin_elems, std::uint64_t end_elems) {
  check(op);
  STRATA_ASSERT(end_elems <= op.count_elems, "a part of an update outside its tile");
  host_kernels::update(op, begin_elems, end_elems);
}

void convert(void* dst, DType dst_dtype, const void* src, DType src_dtype, std::uint64_t count) {
  run(ConvertOp{dst, dst_dtype, src, src_dtype, count});
}

}  // namespace strata
