#include "bench_optim_kernels.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/rng.hpp"
#include "optim/optimizer.hpp"

namespace strata::tool {
namespace {

constexpr std::uint64_t kPatternElems = 65536;
constexpr Bytes kWidth{4};

UpdateCoefficients usual_coefficients(UpdateRule rule) {
  const Hyperparameters usual{.learning_rate = 1e-4,
                              .weight_decay = 0.01,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .epsilon = 1e-8,
                              .momentum = 0.9};
  return coefficients_of(rule, usual, 100, 1);
}

Bytes piece(std::uint64_t params, Bytes width) { return round_up(params * width, kPieceAlign); }

Bytes bytes_of_all(std::uint64_t params) {
  return 5 * piece(params, kWidth) + piece(params, Bytes{2});
}

// Rates of `params` in those seconds.
Spread rates_of(std::uint64_t params, const std::vector<double>& seconds) {
  std::vector<double> rates;
  for (const double one : seconds) rates.push_back(static_cast<double>(params) / one);
  return spread_of(rates);
}

}  // namespace

BenchOptimKernels::BenchOptimKernels(const BenchOptimPlan& plan, ThreadTeam& team)
    : plan_(plan),
      team_(team),
      region_(bytes_of_all(plan.params), {.what = "arrays", .for_transfers = true, .log = {}}),
      arrays_(carve()) {}

BenchOptimKernels::Arrays BenchOptimKernels::carve() const {
  Carver carver(region_.memory());
  const auto next = [&](Bytes width) { return carver.carve(plan_.params * width).data(); };
  return {.gradient = next(kWidth),
          .widened = next(kWidth),
          .weights = next(kWidth),
          .moments = {next(kWidth), next(kWidth)},
          .param = next(Bytes{2})};
}

UpdateOp BenchOptimKernels::op_of(const KernelCase& what) const {
  return {.rule = what.rule,
          .gradient = arrays_.gradient,
          .gradient_dtype = what.gradient,
          .weights = arrays_.weights,
          .weights_dtype = what.weights,
          .moments = {arrays_.moments[0], arrays_.moments[1]},
          .moments_dtype = what.moments,
          .param = what.param ? arrays_.param : nullptr,
          .param_dtype = what.param_type(),
          .count_elems = plan_.params,
          .runs = {{0, plan_.params, usual_coefficients(what.rule)}}};
}

// Values as training has them, a pattern that repeats.
void BenchOptimKernels::fill_array(void* array, DType dtype, double scale, bool positive) {
  std::vector<float> values(kPatternElems);
  for (std::uint64_t i = 0; i < kPatternElems; ++i) {
    values[i] = static_cast<float>(scale * (rng::uniform(7, i) - (positive ? 0 : 0.5)));
  }
  const std::size_t width = size_of(dtype).value;
  std::vector<std::byte> pattern(kPatternElems * width);
  convert(pattern.data(), dtype, values.data(), DType::fp32, kPatternElems);
  team_.run(plan_.params, kPatternElems, [&](std::uint64_t begin, std::uint64_t end) {
    std::memcpy(static_cast<std::byte*>(array) + begin * width, pattern.data(),
                (end - begin) * width);
  });
}

void BenchOptimKernels::fill(const UpdateOp& op) {
  fill_array(arrays_.gradient, op.gradient_dtype, 1e-3, false);
  fill_array(arrays_.weights, op.weights_dtype, 2e-2, false);
  fill_array(arrays_.moments[0], op.moments_dtype, 1e-3, op.rule == UpdateRule::adagrad);
  fill_array(arrays_.moments[1], op.moments_dtype, 1e-6, true);
}

double BenchOptimKernels::run_kernel(const UpdateOp& op) {
  return team_.run(plan_.params, kChunkElems,
                   [&](std::uint64_t begin, std::uint64_t end) { run_on_host(op, begin, end); });
}

double BenchOptimKernels::run_stream(const UpdateOp& op) {
  return team_.run(plan_.params, kChunkElems, [&](std::uint64_t begin, std::uint64_t end) {
    stream_as(op, begin, end, Nothing{});
  });
}

double BenchOptimKernels::run_passes(const UpdateOp& op) {
  const auto pass = [&](const ThreadTeam::Body& body) {
    return team_.run(plan_.params, kChunkElems, body);
  };
  double seconds = 0;
  auto* gradient = reinterpret_cast<float*>(arrays_.gradient);
  if (op.gradient_dtype != DType::fp32) {
    gradient = reinterpret_cast<float*>(arrays_.widened);
    const std::uint64_t width = size_of(op.gradient_dtype).value;
    seconds += pass([&](std::uint64_t begin, std::uint64_t end) {
      run_on_host(AccumulateOp{.accumulator = gradient + begin,
                               .gradient = arrays_.gradient + begin * width,
                               .gradient_dtype = op.gradient_dtype,
                               .count_elems = end - begin,
                               .overwrite = true});
    });
  }
  const float unscaled = op.runs[0].coefficients.factor;
  seconds +=
      pass([&](std::uint64_t begin, std::uint64_t end) { scale(gradient, unscaled, begin, end); });
  UpdateOp rule = op;
  rule.gradient = gradient;
  rule.gradient_dtype = DType::fp32;
  rule.param = nullptr;
  seconds += pass([&](std::uint64_t begin, std::uint64_t end) { run_on_host(rule, begin, end); });
  if (op.param == nullptr) return seconds;
  const auto* weights = static_cast<const float*>(op.weights);
  return seconds + pass([&](std::uint64_t begin, std::uint64_t end) {
           narrow(op.param, op.param_dtype, weights, begin, end);
         });
}

Spread BenchOptimKernels::measure_bandwidth(const Check& check) {
  fill_array(arrays_.weights, DType::fp32, 2e-2, false);
  std::vector<double> rates;
  for (unsigned round = 0; round <= plan_.rounds; ++round) {
    check();
    const double seconds =
        team_.run(plan_.params, kChunkElems, [&](std::uint64_t begin, std::uint64_t end) {
          add_in_place(reinterpret_cast<float*>(arrays_.weights), begin, end, Nothing{});
        });
    const auto moved = static_cast<double>((2 * plan_.params * kWidth).value);
    if (round > 0) rates.push_back(moved / seconds);
  }
  return spread_of(rates);
}

KernelResult BenchOptimKernels::measure(const KernelCase& what, const Check& check) {
  const UpdateOp op = op_of(what);
  fill(op);
  std::vector<double> kernel;
  std::vector<double> passes;
  std::vector<double> fractions;
  for (unsigned round = 0; round <= plan_.rounds; ++round) {  // the first one warms up
    check();
    const double of_kernel = run_kernel(op);
    const double of_stream = run_stream(op);
    const double of_passes = run_passes(op);
    if (round == 0) continue;
    kernel.push_back(of_kernel);
    passes.push_back(of_passes);
    fractions.push_back(of_stream / of_kernel);
  }
  return {.what = what,
          .params_per_s = rates_of(plan_.params, kernel),
          .fraction_of_bound = spread_of(fractions),
          .four_pass_params_per_s = rates_of(plan_.params, passes),
          .errors = {}};
}

double BenchOptimKernels::measure_tiles(std::uint64_t params, std::uint64_t tile_elems,
                                        const Check& check) {
  const UpdateOp op = op_of(KernelCase{});
  fill(op);
  std::vector<double> seconds;
  for (unsigned round = 0; round <= plan_.rounds; ++round) {
    check();
    const double took =
        team_.run(std::min(params, plan_.params), tile_elems,
                  [&](std::uint64_t begin, std::uint64_t end) { run_on_host(op, begin, end); });
    if (round > 0) seconds.push_back(took);
  }
  // A session on few parameters has more of them than the arrays: a block at least.
  const double share =
      static_cast<double>(params) / static_cast<double>(std::min(params, plan_.params));
  return median(seconds) * share;
}

}  // namespace strata::tool
