#include <fmt/format.h>

#include <algorithm>

#include "bench_optim_report.hpp"
#include "strata/bytes.hpp"

namespace strata::tool {
namespace {

std::string title_of(const KernelCase& what) {
  return fmt::format("{:<8} {:<4} {:<4}  {:<4} {:<4}", name_of(what.rule), name_of(what.gradient),
                     name_of(what.param_type()), name_of(what.weights),
                     moments_of(what.rule) == 0 ? "-" : name_of(what.moments));
}

double typical_error_of(const KernelResult& result) {
  return std::ranges::max_element(result.errors, {}, &StateError::fraction_of_typical)
      ->fraction_of_typical;
}

std::string row(const KernelResult& result) {
  const double rate = result.params_per_s.median;
  const double bytes = static_cast<double>(result.what.bytes_per_param().value);
  return fmt::format(
      "{}  {:>7.1f}  {:>5.2f}  {:>5.3f} {:>4.2f}-{:<4.2f}  {:>4.2f}x  {:>4.1f} {:>4.1f}\n",
      title_of(result.what), rate / 1e6, rate * bytes / 1e9, result.fraction_of_bound.median,
      result.fraction_of_bound.low, result.fraction_of_bound.high,
      rate / result.four_pass_params_per_s.median, typical_error_of(result),
      worst_of(result).fraction);
}

std::string streaming_text(const StreamingResult& streaming) {
  return fmt::format(
      "States on a paced disk, {:.2f} GB/s in, {:.2f} GB/s out; {} parameters\n"
      "  update {:.0f} ms, disk alone {:.0f} ms, kernel alone {:.0f} ms\n"
      "  fraction of bound {:.3f} [{:.3f}, {:.3f}]; {:g} B read, {:g} B written/parameter\n",
      streaming.disk_read_bytes_per_s / 1e9, streaming.disk_write_bytes_per_s / 1e9,
      streaming.params, 1e3 * streaming.seconds.median, 1e3 * streaming.io_seconds,
      1e3 * streaming.kernel_seconds, streaming.fraction_of_bound.median,
      streaming.fraction_of_bound.low, streaming.fraction_of_bound.high,
      streaming.read_bytes_per_param, streaming.written_bytes_per_param);
}

}  // namespace

const StateError& worst_of(const KernelResult& result) {
  return *std::ranges::max_element(result.errors, {}, &StateError::fraction);
}

std::string bench_optim_announcement(const BenchOptimPlan& plan) {
  return fmt::format("{} parameters in {}, {} threads, {} rounds of {} kernels\n\n", plan.params,
                     format_bytes(plan.array_bytes()), plan.threads, plan.rounds,
                     plan.cases.size());
}

std::string bench_optim_text(const BenchOptimPlan& plan, const BenchOptimResults& results) {
  std::string text = fmt::format(
      "{}, {} threads, {} pages; memory in place: {:.2f} GB/s [{:.2f}, {:.2f}]\n\n"
      "rule     grad param wght mom       M/s   GB/s  of bound, 80 %  fused   error\n",
      results.instruction_set, plan.threads, format_bytes(results.page_size),
      results.bandwidth_bytes_per_s.median / 1e9, results.bandwidth_bytes_per_s.low / 1e9,
      results.bandwidth_bytes_per_s.high / 1e9);
  for (const KernelResult& kernel : results.kernels) text += row(kernel);
  return text +
         "\nof bound: time of a loop that only moves the same bytes / time of the kernel\n"
         "fused: rate / rate of the same update in passes over the arrays\n"
         "error: largest error of a state / its bound (docs/optimizers.md), over elements\n"
         "  as training has them and over all\n\n" +
         streaming_text(results.streaming);
}

}  // namespace strata::tool
