#include "bench_step_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace strata::tool {
namespace {

constexpr double kForwardShare = 1.0 / 3;  // of the compute: backward costs twice as much
// bf16 parameters and gradients, fp32 masters and two fp32 moments.
constexpr double kParamBytes = 2;
constexpr double kOptimizerBytes = 12;
constexpr std::uint64_t kStateBytes = 16;

}  // namespace

double StepWork::forward() const { return std::max(forward_compute, forward_io); }
double StepWork::backward() const { return std::max(backward_compute, backward_io); }

double StepWork::after_verdict() const {
  return backward() + std::max(forward_compute, forward_io + update_io);
}

double StepWork::bound() const {
  return std::max(forward_compute + backward_compute, forward_io + backward_io + update_io);
}

std::string_view name_of(StepMode mode) {
  switch (mode) {
    case StepMode::resident: return "resident";
    case StepMode::look_ahead_0: return "look-ahead 0";
    case StepMode::after_verdict: return "after the verdict";
    case StepMode::in_backward: return "in backward";
  }
  return "?";
}

double limit_of(StepMode mode, const StepWork& work) {
  switch (mode) {
    case StepMode::resident: return work.forward_compute + work.backward_compute;
    case StepMode::look_ahead_0: return work.serial();
    case StepMode::after_verdict: return work.after_verdict();
    case StepMode::in_backward: return work.bound();
  }
  return 0;
}

Model step_model(const BenchStepOptions& options) {
  Model model;
  for (std::uint32_t u = 0; u < options.units; ++u) {
    model.add_unit(fmt::format("block.{}", u), {{"w", {options.unit_params}}});
  }
  return model;
}

Config step_config(const BenchStepOptions& options, StepMode mode) {
  const Bytes states = options.units * options.unit_params * Bytes{kStateBytes};
  const bool resident = mode == StepMode::resident;
  Config config;
  config.device.kind = Config::DeviceKind::cpu;
  config.budgets.host = 1_GiB + states;
  config.budgets.nvme = 1_GiB + 2 * states;
  config.budgets.device =
      64_MiB + 16 * options.unit_params * Bytes{kStateBytes} + (resident ? 2 * states : Bytes{});
  const TierFractions rest = resident ? TierFractions{1, 0, 0} : TierFractions{0, 0, 1};
  config.placement.param = rest;
  config.placement.optimizer = rest;
  config.placement.grad = resident ? TierFractions{1, 0, 0} : TierFractions{0, 1, 0};
  config.engine.tile = 1_MiB;
  config.engine.look_ahead = mode == StepMode::look_ahead_0 ? 0 : 2;
  if (mode == StepMode::in_backward) {
    config.optimizer.nonfinite = Config::Nonfinite::abort;
    config.optimizer.in_backward = true;
  }
  return config;
}

StepBytes step_bytes(const BenchStepOptions& options) {
  const auto params = static_cast<double>(options.units * options.unit_params);
  return {.read_forward = kParamBytes * params,
          .read_backward = kParamBytes * params,
          .read_update = kOptimizerBytes * params,
          .written_update = (kOptimizerBytes + kParamBytes) * params};
}

StepWork work_of(const StepBytes& bytes, double read_bytes_per_s, double write_bytes_per_s,
                 double compute) {
  return {
      .forward_compute = kForwardShare * compute,
      .backward_compute = (1 - kForwardShare) * compute,
      .forward_io = bytes.read_forward / read_bytes_per_s,
      .backward_io = bytes.read_backward / read_bytes_per_s,
      .update_io = bytes.read_update / read_bytes_per_s + bytes.written_update / write_bytes_per_s};
}

}  // namespace strata::tool
