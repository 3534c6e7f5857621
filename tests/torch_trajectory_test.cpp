// Ten thousand updates against PyTorch's optimizers in float64: tests/data/torch_trajectories.json,
// which tests/data/make_torch_trajectories.py wrote. The path is the library's own: sums of squares
// for the norm, clipping, the scalars of every step, fp32 masters under 16-bit parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "optim/optimizer.hpp"

namespace strata::test {
namespace {

// The functions of the script, under its names.
constexpr std::uint64_t kElems = 48;

int gradient_numerator(std::uint64_t step, std::uint64_t elem) {
  const int noise = static_cast<int>(rng::at(1, step * kElems + elem) % 129) - 64;
  const int mean = std::abs(static_cast<int>((step + 37 * elem) % 2048) - 1024) / 16 - 32;
  return (noise + mean) * (step % 50 == 0 ? 8 : 1);
}

int gradient_exponent(std::uint64_t elem) { return -6 - static_cast<int>(elem % 6); }

float initial_weight(std::uint64_t elem) {
  return static_cast<float>(static_cast<int>(rng::at(2, elem) % 2001) - 1000) / 1024;
}

double rate_factor(std::uint64_t step, std::uint64_t steps) {
  const auto t = static_cast<double>(step);
  return step < 100 ? t / 100 : 1 - 0.9 * t / static_cast<double>(steps);
}

const nlohmann::json& trajectories() {
  static const auto json =
      nlohmann::json::parse(std::ifstream(STRATA_TEST_DATA_DIR "/torch_trajectories.json"));
  return json;
}

Hyperparameters hyperparameters(const nlohmann::json& group) {
  Hyperparameters h;
  h.learning_rate = group["lr"];
  h.weight_decay = group["weight_decay"];
  h.epsilon = group.value("eps", h.epsilon);
  h.momentum = group.value("momentum", h.momentum);
  if (group.contains("betas")) {
    h.beta1 = group["betas"][0];
    h.beta2 = group["betas"][1];
  }
  return h;
}

// A tile of two parameter groups.
class Trainer {
 public:
  explicit Trainer(UpdateRule rule)
      : rule_(rule), recorded_(trajectories()["rules"][std::string(name_of(rule))]) {
    for (std::uint64_t i = 0; i < kElems; ++i) weights[i] = initial_weight(i);
  }

  void step(std::uint64_t t) {
    std::array<float, kElems> exact;
    for (std::uint64_t i = 0; i < kElems; ++i) {
      exact[i] = std::ldexp(static_cast<float>(gradient_numerator(t, i)), gradient_exponent(i));
    }
    std::array<std::uint16_t, kElems> gradient;
    convert(gradient.data(), DType::bf16, exact.data(), DType::fp32, kElems);
    double sum = 0;
    std::uint32_t nonfinite = 0;
    run_on_host(GradientStatsOp{gradient.data(), DType::bf16, kElems, &sum, &nonfinite});
    const double factor = clip_factor(std::sqrt(sum), trajectories()["clip_norm"]);
    clipped_steps += factor < 1 ? 1 : 0;
    run_on_host(UpdateOp{.rule = rule_,
                         .gradient = gradient.data(),
                         .gradient_dtype = DType::bf16,
                         .weights = weights.data(),
                         .moments = {moments_[0].data(), moments_[1].data()},
                         .param = params_.data(),
                         .count_elems = kElems,
                         .runs = runs(t, factor)});
  }

  // How far the farthest weight is from torch's, in units of what rounding may do.
  double deviation(std::uint64_t t) const {
    const std::vector<double> expected = recorded_["weights"][std::to_string(t)];
    double worst = 0;
    for (std::uint64_t i = 0; i < kElems; ++i) {
      const double off = std::abs(static_cast<double>(weights[i]) - expected[i]);
      worst = std::max(worst, off / allowed(t));
    }
    return worst;
  }

  // A step rounds a weight once or twice. Weights stay below 4 here, so that a rounding is off by
  // 2^-23 at most; by chance of either sign, so that t steps walk some sqrt(t) of those away, and
  // twice that is rare. Below it stays what the scalars, rounded to float32, and epsilon add.
  static double allowed(std::uint64_t t) { return 2 * std::sqrt(static_cast<double>(t)) * 0x1p-23; }

  std::array<float, kElems> weights = {};
  std::uint64_t clipped_steps = 0;

  std::uint64_t recorded_clipped_steps() const { return recorded_["clipped_steps"]; }

 private:
  std::vector<UpdateRun> runs(std::uint64_t t, double factor) const {
    std::vector<UpdateRun> runs;
    std::uint64_t begin = 0;
    for (std::size_t group = 0; group < 2; ++group) {
      Hyperparameters h = hyperparameters(recorded_["groups"][group]);
      h.learning_rate *= rate_factor(t, trajectories()["steps"]);
      const std::uint64_t count = trajectories()["group_sizes"][group];
      runs.push_back({begin, count, coefficients_of(rule_, h, t, factor)});
      begin += count;
    }
    return runs;
  }

  UpdateRule rule_;
  const nlohmann::json& recorded_;
  std::array<float, kElems> moments_[2] = {};
  std::array<std::uint16_t, kElems> params_ = {};
};

class TorchTrajectory : public ::testing::TestWithParam<UpdateRule> {};

TEST_P(TorchTrajectory, IsFollowedToTheRoundingOfFloat32) {
  const std::uint64_t steps = trajectories()["steps"];
  Trainer trainer(GetParam());
  for (std::uint64_t t = 1; t <= steps; ++t) {
    trainer.step(t);
    if (t != 1 && t != 10 && t != 100 && t != 1000 && t != steps) continue;
    const double deviation = trainer.deviation(t);
    RecordProperty("step " + std::to_string(t), std::to_string(deviation));
    EXPECT_LE(deviation, 1) << "after " << t << " steps";
  }
  EXPECT_EQ(trainer.clipped_steps, trainer.recorded_clipped_steps());
  EXPECT_GT(trainer.clipped_steps, steps / 10);
  EXPECT_LT(trainer.clipped_steps, steps - steps / 10);
}

INSTANTIATE_TEST_SUITE_P(Every, TorchTrajectory, ::testing::ValuesIn(kUpdateRules),
                         [](const auto& rule) { return std::string(name_of(rule.param)); });

TEST(TorchTrajectories, AreOfTheseGradients) {
  const std::uint64_t steps = trajectories()["steps"];
  std::int64_t sum = 0;
  for (std::uint64_t t = 1; t <= steps; ++t) {
    for (std::uint64_t i = 0; i < kElems; ++i) sum += gradient_numerator(t, i);
  }
  EXPECT_EQ(sum, trajectories()["sum_of_numerators"].get<std::int64_t>());
}

}  // namespace
}  // namespace strata::test
