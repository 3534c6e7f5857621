// AdamW's scalars, and with them whole updates, against the textbook in float64.
#include "optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

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

TEST(ClipFactor, ScalesDownOnly) {
  EXPECT_EQ(clip_factor(5.0, 0), 1.0);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / 4.000001);
  EXPECT_DOUBLE_EQ(clip_factor(1e30, 2.0), 2e-30);
}

}  // namespace
}  // namespace strata::test
