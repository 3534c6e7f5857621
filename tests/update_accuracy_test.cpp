// One update of every rule against its documented expression (strata/element_ops.hpp) in float64,
// with the same float32 scalars: how far rounding takes each state.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer.hpp"
#include "support/hostile_floats.hpp"

namespace strata::test {
namespace {

constexpr double kHalfUlp = 0x1p-24;  // of a float, relative: the most that one rounding does
constexpr std::uint64_t kElems = 20'000;

// The right value of a state.
struct Exact {
  double value = 0;
  // What may be off, in half ulps: for each rounding of the expression its result times how much
  // the state depends on it (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3,
  // running error analysis). A fused multiply-add rounds once.
  double roundings = 0;
  double largest_operand = 0;  // of the sum that the state becomes
};

struct Element {
  float gradient, w;
  std::array<float, 2> m;
};

struct ExactUpdate {
  std::array<Exact, 2> moments;
  Exact weight;
  bool sign_is_sure = true;  // of lion: the direction is not within its rounding of zero
};

double largest(std::initializer_list<double> operands) {
  double most = 0;
  for (const double one : operands) most = std::max(most, std::abs(one));
  return most;
}

// The state to + weight * (value - to), where `value` has `roundings` of its own.
Exact blended(double to, double weight, double value, double roundings) {
  const double increment = weight * (value - to);
  return {to + increment, weight * roundings + std::abs(increment) + std::abs(to + increment),
          largest({to, increment, weight * roundings})};
}

// The weight follows from the moments that were stored: `after`, in float32.
ExactUpdate exact_update(UpdateRule rule, const Element& e, const std::array<float, 2>& after,
                         const UpdateCoefficients& c) {
  const bool decoupled = rule == UpdateRule::adamw || rule == UpdateRule::lion;
  const double w = e.w;
  const double scaled = double{e.gradient} * c.factor;
  const double penalty = decoupled ? 0 : c.decay * w;
  const double g = scaled + penalty;
  const double g_roundings = std::abs(scaled) + (decoupled ? 0 : std::abs(g));
  const double m0 = e.m[0];
  const double momentum = c.momentum;
  ExactUpdate to;
  double step = 0;            // what the weight loses besides its decay
  double step_roundings = 0;  // before the last, fused with the difference

  switch (rule) {
    case UpdateRule::adamw:
    case UpdateRule::adam: {
      to.moments[0] = blended(m0, c.blend1, g, g_roundings);
      to.moments[1] = blended(e.m[1], c.blend2, g * g, 2 * std::abs(g) * g_roundings);
      const double root = std::sqrt(double{after[1]}) * c.second_scale;
      const double denominator = root + c.epsilon;
      step = c.step * double{after[0]} / denominator;
      step_roundings = std::abs(step) * (root / denominator + 2);  // root, denominator, quotient
      break;
    }
    case UpdateRule::sgd:
      step = c.step * g;
      step_roundings = c.step * g_roundings;
      break;
    case UpdateRule::momentum:
    case UpdateRule::nesterov: {
      const double sum = momentum * m0 + g;
      to.moments[0] = {sum, g_roundings + std::abs(sum), largest({momentum * m0, scaled, penalty})};
      step = c.step * double{after[0]};
      if (rule == UpdateRule::nesterov) {
        const double ahead = g + momentum * after[0];
        step = c.step * ahead;
        step_roundings = c.step * (g_roundings + std::abs(ahead));
      }
      break;
    }
    case UpdateRule::adagrad: {
      const double sum = m0 + g * g;
      to.moments[0] = {sum, 2 * std::abs(g) * g_roundings + sum, largest({m0, g * g})};
      const double root = std::sqrt(double{after[0]});
      const double denominator = root + c.epsilon;
      step = c.step * g / denominator;
      step_roundings =
          c.step * g_roundings / denominator + std::abs(step) * (root / denominator + 2);
      break;
    }
    case UpdateRule::lion: {
      const Exact direction = blended(m0, c.blend1, g, g_roundings);
      to.sign_is_sure = std::abs(direction.value) > 2 * kHalfUlp * direction.roundings;
      step = std::copysign(double{c.step}, direction.value);
      to.moments[0] = blended(m0, c.blend2, g, g_roundings);
      break;
    }
  }
  const double kept = decoupled ? w - c.decay * w : w;
  const double value = kept - step;
  to.weight = {value, (decoupled ? std::abs(kept) : 0) + step_roundings + std::abs(value),
               largest({w, w - kept, step})};
  return to;
}

struct Scalars {
  std::string_view name;
  UpdateCoefficients coefficients;
};

std::vector<Scalars> all_scalars(UpdateRule rule) {
  const Hyperparameters usual{.learning_rate = 3e-3, .weight_decay = 0.1, .momentum = 0.9};
  Hyperparameters slow = usual, fast = usual, undecayed = usual, long_memory = usual;
  slow.learning_rate = 1e-12;
  fast.learning_rate = 1e3;
  undecayed.weight_decay = 0;
  long_memory.beta2 = 0.999999;
  return {{"usual", coefficients_of(rule, usual, 10, 1.0 / 3)},
          {"rate 1e-12", coefficients_of(rule, slow, 3, 0.7)},
          {"no decay", coefficients_of(rule, undecayed, 50, 0.3)},
          {"update 2^24 + 1", coefficients_of(rule, usual, (1U << 24) + 1, 1.0 / 3)},
          {"beta2 0.999999", coefficients_of(rule, long_memory, 2, 1)},
          {"rate 1e3", coefficients_of(rule, fast, 5, 0.7)}};
}

// Exponents of what an update reads; of second moments and sums of squares, twice the first ones'.
struct Range {
  int lowest, highest;
};
struct Magnitudes {
  std::string_view name;
  Range gradient, weight, moment;
};

std::vector<Element> draw(const Magnitudes& magnitudes, UpdateRule rule) {
  RandomStream random(23);
  const auto one = [&](Range range) { return float_between(random, range.lowest, range.highest); };
  const auto square = [&] {
    return std::abs(
        float_between(random, 2 * magnitudes.moment.lowest, 2 * magnitudes.moment.highest));
  };
  std::vector<Element> elements;
  for (std::uint64_t i = 0; i < kElems; ++i) {
    const float m = rule == UpdateRule::adagrad ? square() : one(magnitudes.moment);
    elements.push_back({one(magnitudes.gradient), one(magnitudes.weight), {m, square()}});
  }
  return elements;
}

std::vector<Element> updated(UpdateRule rule, const std::vector<Element>& elements,
                             const UpdateCoefficients& c) {
  std::vector<float> gradient, w, m1, m2;
  for (const Element& e : elements) {
    gradient.push_back(e.gradient);
    w.push_back(e.w);
    m1.push_back(e.m[0]);
    m2.push_back(e.m[1]);
  }
  run_on_host(UpdateOp{.rule = rule,
                       .gradient = gradient.data(),
                       .gradient_dtype = DType::fp32,
                       .weights = w.data(),
                       .moments = {m1.data(), m2.data()},
                       .count_elems = elements.size(),
                       .runs = {{0, elements.size(), c}}});
  std::vector<Element> after;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    after.push_back({gradient[i], w[i], {m1[i], m2[i]}});
  }
  return after;
}

// The largest errors, in half ulps of Exact::largest_operand and as a part of Exact::roundings.
struct Worst {
  double of_operand = 0, of_roundings = 0;

  void see(float got, const Exact& exact) {
    const double error = std::abs(double{got} - exact.value) / kHalfUlp;
    if (error == 0) return;
    of_operand = std::max(of_operand, error / exact.largest_operand);
    of_roundings = std::max(of_roundings, error / exact.roundings);
  }
};

class UpdateAccuracy : public ::testing::TestWithParam<UpdateRule> {
 protected:
  // Weight, first and second moment.
  std::array<Worst, 3> errors(const Magnitudes& magnitudes, const UpdateCoefficients& c) const {
    const std::vector<Element> before = draw(magnitudes, GetParam());
    const std::vector<Element> after = updated(GetParam(), before, c);
    std::array<Worst, 3> worst;
    std::uint64_t seen = 0;
    for (std::uint64_t i = 0; i < kElems; ++i) {
      const ExactUpdate exact = exact_update(GetParam(), before[i], after[i].m, c);
      for (std::size_t k = 0; k < moments_of(GetParam()); ++k) {
        worst[k + 1].see(after[i].m[k], exact.moments[k]);
      }
      if (!exact.sign_is_sure) continue;
      ++seen;
      worst[0].see(after[i].w, exact.weight);
    }
    EXPECT_GT(seen, kElems - kElems / 100);
    return worst;
  }

  static constexpr std::array<std::string_view, 3> kStates = {"weight", "moment 1", "moment 2"};
};

// Of every size, also where the increments are all that counts and where the sums cancel.
TEST_P(UpdateAccuracy, EveryRoundingIsHalfAnUlpAtMost) {
  constexpr std::array kMagnitudes = {
      Magnitudes{"ordinary", {-10, 0}, {-8, 0}, {-12, -1}},
      Magnitudes{"alike", {-1, 1}, {-1, 1}, {-1, 1}},
      Magnitudes{"far apart", {-40, 40}, {-40, 40}, {-40, 40}},
  };
  constexpr double kSecondOrder = 1.00001;
  for (const Magnitudes& magnitudes : kMagnitudes) {
    for (const Scalars& scalars : all_scalars(GetParam())) {
      const std::array<Worst, 3> worst = errors(magnitudes, scalars.coefficients);
      for (std::size_t k = 0; k < kStates.size(); ++k) {
        EXPECT_LE(worst[k].of_roundings, kSecondOrder)
            << kStates[k] << ", " << magnitudes.name << " magnitudes, " << scalars.name;
      }
    }
  }
}

// The state of training: increments are small beside what they are added to. Then two roundings of
// that are all there is. (A rate of 1e3 has no small increments.)
TEST_P(UpdateAccuracy, SmallIncrementsCostTwoRoundingsOfTheOldValue) {
  constexpr Magnitudes kSmall{"small gradients", {-8, -5}, {-1, 1}, {-1, 1}};
  std::vector<Scalars> all = all_scalars(GetParam());
  all.pop_back();
  for (const Scalars& scalars : all) {
    const std::array<Worst, 3> worst = errors(kSmall, scalars.coefficients);
    for (std::size_t k = 0; k < kStates.size(); ++k) {
      EXPECT_LE(worst[k].of_operand, 2) << kStates[k] << ", " << scalars.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, UpdateAccuracy, ::testing::ValuesIn(kUpdateRules),
                         [](const auto& rule) { return std::string(name_of(rule.param)); });

}  // namespace
}  // namespace strata::test
