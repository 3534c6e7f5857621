// The scalars of a step, AdamW with them against the textbook in float64, and loss scaling.
#include "optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "optim/loss_scale.hpp"
#include "support/random_model.hpp"

namespace strata::test {
namespace {

// Loshchilov & Hutter, "Decoupled Weight Decay Regularization", algorithm 2, as it is printed:
// moments, their bias corrections, and the step. Independent of how our scalars are folded.
struct TextbookAdamW {
  double w = 0, m = 0, v = 0;
  int t = 0;

  void update(const Hyperparameters& h, double gradient) {
    ++t;
    m = h.beta1 * m + (1 - h.beta1) * gradient;
    v = h.beta2 * v + (1 - h.beta2) * gradient * gradient;
    const double m_hat = m / (1 - std::pow(h.beta1, t));
    const double v_hat = v / (1 - std::pow(h.beta2, t));
    w -= h.learning_rate * (m_hat / (std::sqrt(v_hat) + h.epsilon) + h.weight_decay * w);
  }
};

TEST(AdamW, FollowsTheTextbookOverManyUpdates) {
  constexpr std::size_t kElems = 64;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const Hyperparameters h{.learning_rate = 1e-4 + 1e-2 * random.uniform(),
                            .weight_decay = 0.2 * random.uniform(),
                            .beta1 = 0.8 + 0.19 * random.uniform(),
                            .beta2 = 0.9 + 0.099 * random.uniform(),
                            .epsilon = 1e-8};
    const double factor = 0.25 + random.uniform();
    std::vector<TextbookAdamW> expected(kElems);
    std::vector<float> gradient(kElems), master(kElems), moment1(kElems), moment2(kElems);
    for (std::size_t i = 0; i < kElems; ++i) {
      master[i] = static_cast<float>(random.uniform() - 0.5);
      expected[i].w = master[i];
    }
    for (std::uint64_t update = 1; update <= 30; ++update) {
      for (std::size_t i = 0; i < kElems; ++i) {
        gradient[i] = static_cast<float>(random.uniform() - 0.5);
        expected[i].update(h, factor * gradient[i]);
      }
      run_on_host(
          UpdateOp{.gradient = gradient.data(),
                   .gradient_dtype = DType::fp32,
                   .weights = master.data(),
                   .moments = {moment1.data(), moment2.data()},
                   .count_elems = kElems,
                   .runs = {{0, kElems, coefficients_of(UpdateRule::adamw, h, update, factor)}}});
    }
    for (std::size_t i = 0; i < kElems; ++i) {
      ASSERT_NEAR(master[i], expected[i].w, 2e-6) << "element " << i;
      ASSERT_NEAR(moment1[i], expected[i].m, 1e-6) << "element " << i;
      ASSERT_NEAR(moment2[i], expected[i].v, 1e-6) << "element " << i;
    }
  }
}

TEST(AdamW, TheFirstUpdateMovesByTheRateAgainstTheSign) {
  // m_hat = g and v_hat = g^2, so that the step is rate x sign(g) but for epsilon.
  const UpdateCoefficients c =
      coefficients_of(UpdateRule::adamw, {.learning_rate = 0.1, .weight_decay = 0.5}, 1, 1.0);
  EXPECT_FLOAT_EQ(c.step, 0.1F / (1 - 0.9F));
  EXPECT_FLOAT_EQ(c.second_scale, static_cast<float>(1 / std::sqrt(1 - 0.999)));
  EXPECT_FLOAT_EQ(c.decay, 0.05F);
  float gradient = -3;
  float w = 2, m = 0, v = 0;
  run_on_host(UpdateOp{.gradient = &gradient,
                       .gradient_dtype = DType::fp32,
                       .weights = &w,
                       .moments = {&m, &v},
                       .count_elems = 1,
                       .runs = {{0, 1, c}}});
  EXPECT_NEAR(w, 2 * 0.95 + 0.1, 1e-6);
}

TEST(AdamW, ScalarsAreRoundedOnce) {
  const UpdateCoefficients c = coefficients_of(
      UpdateRule::adamw, {.learning_rate = 3e-4, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95},
      1000000, 1.0 / 3);
  EXPECT_EQ(c.factor, static_cast<float>(1.0 / 3));
  EXPECT_EQ(c.decay, static_cast<float>(3e-4 * 0.1));
  EXPECT_EQ(c.blend1, static_cast<float>(1 - 0.9));
  EXPECT_EQ(c.blend2, static_cast<float>(1 - 0.95));
  // The corrections have died out; in float32 powers they would too, but not exactly.
  EXPECT_EQ(c.step, static_cast<float>(3e-4));
  EXPECT_EQ(c.second_scale, 1.0F);
}

// Numbers whose powers are exact, so that the right scalars are plain.
constexpr Hyperparameters kExact{.learning_rate = 0.5,
                                 .weight_decay = 0.25,
                                 .beta1 = 0.5,
                                 .beta2 = 0.75,
                                 .epsilon = 0x1p-20,
                                 .momentum = 0.875};

TEST(Coefficients, AreThoseOfTheRule) {
  for (const UpdateRule rule : kUpdateRules) {
    SCOPED_TRACE(name_of(rule));
    const bool adam = rule == UpdateRule::adamw || rule == UpdateRule::adam;
    const bool decoupled = rule == UpdateRule::adamw || rule == UpdateRule::lion;
    const UpdateCoefficients c = coefficients_of(rule, kExact, 2, 0.1);
    EXPECT_EQ(c.factor, 0.1F);
    EXPECT_EQ(c.decay, decoupled ? 0.125F : 0.25F);
    EXPECT_EQ(c.blend1, 0.5F);
    EXPECT_EQ(c.blend2, 0.25F);
    EXPECT_EQ(c.momentum, 0.875F);
    EXPECT_EQ(c.epsilon, 0x1p-20F);
    EXPECT_EQ(c.step, adam ? static_cast<float>(0.5 / (1 - 0.25)) : 0.5F);
    EXPECT_EQ(c.second_scale, adam ? static_cast<float>(4 / std::sqrt(7.0)) : 1.0F);
  }
}

TEST(Coefficients, NeedNoRateAndNoDecay) {
  for (const UpdateRule rule : kUpdateRules) {
    const UpdateCoefficients c = coefficients_of(rule, {}, 1, 1);
    EXPECT_EQ(c.step, 0) << name_of(rule);
    EXPECT_EQ(c.decay, 0) << name_of(rule);
  }
}

// As a float, 2^24 + 1 is 2^24; and 1 - beta2 is 1e-7 with half of a float's digits.
TEST(Coefficients, CorrectLateUpdatesAndLongMemories) {
  constexpr std::uint64_t kUpdates = (1U << 24) + 1;
  const double correction = -std::expm1(static_cast<double>(kUpdates) * std::log1p(-1e-7));
  for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::adam}) {
    const UpdateCoefficients c = coefficients_of(
        rule, {.learning_rate = 1, .beta1 = 1 - 1e-7, .beta2 = 1 - 1e-7}, kUpdates, 1);
    EXPECT_FLOAT_EQ(c.step, static_cast<float>(1 / correction));
    EXPECT_FLOAT_EQ(c.second_scale, static_cast<float>(1 / std::sqrt(correction)));
    EXPECT_FLOAT_EQ(c.blend2, 1e-7F);
  }
  // One update later the power is another, and a product of 2^24 factors is none of a float.
  const auto step_of = [](std::uint64_t updates) {
    return coefficients_of(UpdateRule::adamw, {.learning_rate = 1, .beta1 = 0.999999}, updates, 1)
        .step;
  };
  EXPECT_NE(step_of(1000), step_of(1001));
  EXPECT_FLOAT_EQ(step_of(1), 1e6F);
}

TEST(ClipFactor, ScalesDownOnly) {
  EXPECT_EQ(clip_factor(5.0, 0), 1.0);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(1.0 - 2e-6, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 1.0), 1.0 / 1.000001);  // as torch has it
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / 4.000001);
  EXPECT_DOUBLE_EQ(clip_factor(1e30, 2.0), 2e-30);
  EXPECT_DOUBLE_EQ(clip_factor(1e-300, 1e-300), 1e-294);
}

struct Scaled {
  char event;    // 'f' all gradients finite, 'o' overflow
  double scale;  // after it
};

// Expects that every step may go on.
void expect_scales(LossScale& scale, const std::vector<Scaled>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].event == 'f') {
      scale.succeeded();
    } else {
      EXPECT_TRUE(scale.overflowed()) << "step " << i;
    }
    ASSERT_EQ(scale.value(), steps[i].scale) << "after step " << i;
  }
}

Config::LossScale dynamic_scale() {
  return {.kind = Config::LossScaleKind::dynamic,
          .initial = 16,
          .growth = 2,
          .backoff = 0.5,
          .minimum = 4,
          .growth_interval = 3,
          .hysteresis = 2};
}

// By hand from the DynamicLossScaler of DeepSpeed (runtime/fp16/loss_scaler.py) with scale_window
// 3, delayed_shift 2, min_scale 4, consecutive_hysteresis false.
TEST(LossScale, GrowsAndBacksOffAsDeepSpeeds) {
  LossScale scale(dynamic_scale());
  EXPECT_TRUE(scale.scales());
  EXPECT_EQ(scale.value(), 16);
  expect_scales(scale, {{'f', 16},
                        {'f', 16},
                        {'f', 32},  // a window
                        {'f', 32},
                        {'o', 32},  // the first is forgiven
                        {'f', 32},
                        {'f', 32},
                        {'o', 16},
                        {'o', 8},  // finite steps forgive none
                        {'f', 8},
                        {'f', 8},
                        {'f', 16},  // growth does
                        {'o', 16},
                        {'o', 8},
                        {'f', 8},
                        {'o', 4}});
  EXPECT_FALSE(scale.overflowed());
  EXPECT_EQ(scale.value(), 4);
  EXPECT_FALSE(scale.overflowed());
  expect_scales(scale, {{'f', 4}, {'f', 4}, {'f', 8}, {'o', 8}, {'o', 4}});
}

TEST(LossScale, GrowsAgainAfterEveryWindow) {
  LossScale scale(dynamic_scale());
  expect_scales(scale, {{'f', 16},
                        {'f', 16},
                        {'f', 32},
                        {'f', 32},
                        {'f', 32},
                        {'f', 64},
                        {'f', 64},
                        {'f', 64},
                        {'f', 128}});
}

// A window counts from the last overflow, forgiven or not.
TEST(LossScale, AForgivenOverflowBeginsAWindow) {
  LossScale scale(dynamic_scale());
  expect_scales(scale, {{'f', 16}, {'f', 16}, {'o', 16}, {'f', 16}, {'f', 16}, {'f', 32}});
}

TEST(LossScale, WithoutHysteresisEveryOverflowShrinks) {
  Config::LossScale settings = dynamic_scale();
  settings.hysteresis = 1;
  settings.growth_interval = 1;
  LossScale scale(settings);
  expect_scales(scale, {{'o', 8}, {'f', 16}, {'o', 8}, {'o', 4}});
  EXPECT_FALSE(scale.overflowed());
}

TEST(LossScale, StopsAtTheMinimumAndAtTheTop) {
  Config::LossScale settings = dynamic_scale();
  settings.hysteresis = 1;
  settings.growth_interval = 1;
  settings.initial = 10;
  settings.growth = 4;
  settings.backoff = 0.25;
  LossScale low(settings);
  expect_scales(low, {{'o', 4}, {'f', 16}, {'o', 4}});
  EXPECT_FALSE(low.overflowed());
  settings.initial = 0x1p123;
  LossScale high(settings);
  expect_scales(high, {{'f', 0x1p125}, {'f', 0x1p125}, {'o', 0x1p123}});
}

TEST(LossScale, FixedAndNoneStayAsTheyAre) {
  Config::LossScale settings = dynamic_scale();
  settings.growth_interval = 1;
  settings.kind = Config::LossScaleKind::fixed;
  LossScale fixed(settings);
  EXPECT_TRUE(fixed.scales());
  expect_scales(fixed, {{'f', 16}, {'o', 16}, {'o', 16}, {'o', 16}, {'f', 16}});
  settings.kind = Config::LossScaleKind::none;
  LossScale none(settings);
  EXPECT_FALSE(none.scales());
  expect_scales(none, {{'f', 1}, {'o', 1}, {'o', 1}, {'f', 1}});
}

}  // namespace
}  // namespace strata::test
