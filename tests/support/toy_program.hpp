// A small training program for tests of whole sessions: its gradients are a fixed function of the
// weights, the step, the micro-batch and the rank, so that any two runs of it must agree bit for
// bit, and an independent reference in fp64 can follow it. Every launched function declares what
// it reads and writes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strata/session.hpp"

namespace strata::test {

struct ToyOptions {
  std::uint32_t steps = 3;
  std::uint32_t micro_batches = 1;
  std::uint64_t seed = 1;
  std::uint64_t scale_elems = 20000;  // roughly the elements of the largest tensor
  // Called before each step's end(); may spoil gradients by naming a step and rank.
  std::int64_t nonfinite_step = -1;
  std::uint32_t nonfinite_rank = 0;
  std::int64_t nonfinite_micro_batch = -1;  // -1: every one of the step
  std::vector<GroupRates> groups = {};
  // Tensors of this unit are not marked present in odd steps.
  bool skip_last_unit_in_odd_steps = false;
  // Seed of what steps do differently from each other: units left out or gathered twice, leases
  // held longer, fewer micro-batches, an early exit, an evaluation in between. 0: nothing.
  std::uint64_t deviations = 0;
  // Called between initialize() and step 0, between steps, and after the last; nothing is under way
  // then.
  std::function<void(std::uint32_t completed_steps)> between_steps = {};
};

struct ToyResult {
  std::string weights_hash;
  std::string states_hash;
  std::vector<StepResult> steps;
  MemoryPlan plan;
  TierUsage usage[kTierCount];
  LinkBytes bytes;
};

// Four units: two plain, one with a frozen tensor and odd shapes, one tiny (empty shards).
Model toy_model(const ToyOptions& options);

// The gradient of one element: a function of the weight as the device sees it.
float toy_gradient(std::uint64_t seed, std::uint32_t step, std::uint32_t micro_batch,
                   std::uint32_t rank, UnitId unit, TensorId tensor, std::uint64_t index,
                   float weight);
float toy_initial(std::uint64_t seed, UnitId unit, TensorId tensor, std::uint64_t index);

// Opens, initializes, trains and closes. `inspect` runs before the close.
ToyResult run_toy(const ToyOptions& options, const Config& config, Backends backends,
                  const std::function<void(Session&)>& inspect = {});

// A configuration in which the toy fits, with every kind in one home.
Config toy_config(const TierFractions& param, const TierFractions& grad,
                  const TierFractions& optimizer);
inline constexpr TierFractions kDevice{1, 0, 0};
inline constexpr TierFractions kHost{0, 1, 0};
inline constexpr TierFractions kNvme{0, 0, 1};
inline constexpr TierFractions kMixed{0.3, 0.3, 0.4};

}  // namespace strata::test
