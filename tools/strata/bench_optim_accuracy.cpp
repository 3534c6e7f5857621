#include "bench_optim_accuracy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

#include "base/check.hpp"
#include "base/rng.hpp"
#include "optim/optimizer.hpp"

namespace strata::tool {
namespace {

constexpr std::uint64_t kElements = 1 << 20;
constexpr double kTwoRoundings = 2 * 0x1p-24;

// A value, and the largest operand of the sums that formed it, as what it adds to the value.
struct Formed {
  double value = 0;
  double largest = 0;
  std::string_view operand = "none";
};

Formed times(double factor, const Formed& a) {
  return {factor * a.value, std::abs(factor) * a.largest, a.operand};
}

struct Named {
  std::string_view name;
  Formed formed;
};

Formed add(const Named& a, const Named& b) {
  Formed sum{.value = a.formed.value + b.formed.value};
  const auto consider = [&sum](double magnitude, std::string_view operand) {
    if (std::abs(magnitude) <= sum.largest) return;
    sum.largest = std::abs(magnitude);
    sum.operand = operand;
  };
  for (const Named& part : {a, b}) {
    consider(part.formed.value, part.name);
    consider(part.formed.largest, part.formed.operand);
  }
  return sum;
}

struct Inputs {
  double gradient = 0;
  double weight = 0;
  double moments[2] = {};
};

struct States {
  Formed weight;
  Formed moments[2];
  Formed direction;  // of lion: what the sign is taken of
};

// to + amount * (value - to), whose operands count whole.
Formed blend(const Named& to, double amount, const Named& value) {
  Formed difference = add(value, {to.name, times(-1, to.formed)});
  difference.value *= amount;
  return add(to, {"blend", difference});
}

// The expressions, as element_ops.hpp has them.
class Reference {
 public:
  Reference(UpdateRule rule, const UpdateCoefficients& c) : rule_(rule), c_(c) {}

  States operator()(const Inputs& in) const {
    const bool decoupled = rule_ == UpdateRule::adamw || rule_ == UpdateRule::lion;
    const Named w{"weight", {in.weight}};
    const Named scaled{"gradient", {in.gradient * c_.factor}};
    const Named g =
        decoupled ? scaled : Named{"gradient", add(scaled, {"decay", times(c_.decay, w.formed)})};
    const Named decayed =
        decoupled ? Named{"weight", add(w, {"decay", times(-double{c_.decay}, w.formed)})} : w;
    States states = moments_and_step(g, in);
    const Formed step = times(-double{c_.step}, states.weight);
    states.weight = add(decayed, {"step", step});
    return states;
  }

 private:
  // With `weight` what is to be multiplied by the step.
  States moments_and_step(const Named& g, const Inputs& in) const {
    const Named m1{"moment1", {in.moments[0]}};
    const Named m2{"moment2", {in.moments[1]}};
    const Named squared{"square",
                        {g.formed.value * g.formed.value,
                         2 * std::abs(g.formed.value) * g.formed.largest, g.formed.operand}};
    States s;
    switch (rule_) {
      case UpdateRule::adamw:
      case UpdateRule::adam:
        s.moments[0] = blend(m1, c_.blend1, g);
        s.moments[1] = blend(m2, c_.blend2, squared);
        s.weight =
            times(1 / (std::sqrt(s.moments[1].value) * c_.second_scale + c_.epsilon), s.moments[0]);
        break;
      case UpdateRule::sgd: s.weight = g.formed; break;
      case UpdateRule::momentum:
        s.moments[0] = s.weight = add({"momentum", times(c_.momentum, m1.formed)}, g);
        break;
      case UpdateRule::nesterov:
        s.moments[0] = add({"momentum", times(c_.momentum, m1.formed)}, g);
        s.weight = add(g, {"momentum", times(c_.momentum, s.moments[0])});
        break;
      case UpdateRule::adagrad:
        s.moments[0] = add(m1, squared);
        s.weight = times(1 / (std::sqrt(s.moments[0].value) + c_.epsilon), g.formed);
        break;
      case UpdateRule::lion:
        s.direction = blend(m1, c_.blend1, g);
        s.moments[0] = blend(m1, c_.blend2, g);
        s.weight = {static_cast<double>((s.direction.value > 0) - (s.direction.value < 0))};
        break;
    }
    return s;
  }

  const UpdateRule rule_;
  const UpdateCoefficients c_;
};

// Half a unit in the last place of what rests in bf16 (8 bits of significand) around `value`.
double half_ulp(DType dtype, double value) {
  STRATA_ASSERT(dtype != DType::fp16, "states do not rest in fp16 here");
  if (dtype == DType::fp32 || value == 0) return 0;
  return std::ldexp(1.0, std::ilogb(value) - 8);
}

// Random inputs; the even elements are typical.
class Draw {
 public:
  explicit Draw(const KernelCase& what) : what_(what) {}

  static bool typical(std::uint64_t index) { return index % 2 == 0; }

  float gradient(std::uint64_t i) const {
    const int reach = what_.gradient == DType::fp16 ? 14 : 40;
    return typical(i) ? around(0, i, 1e-3) : anywhere(0, i, reach);
  }
  float weight(std::uint64_t i) const {
    return typical(i) ? around(1, i, 2e-2) : anywhere(1, i, 40);
  }
  float moment(std::size_t k, std::uint64_t i) const {
    const bool squared = k == 1 || what_.rule == UpdateRule::adagrad;
    const float value = typical(i) ? around(2 + k, i, squared ? 1e-6 : 1e-3)
                                   : anywhere(2 + k, i, squared ? 80 : 40);
    return squared ? std::abs(value) : value;
  }

 private:
  // A sum of uniform values: bell-shaped, with the deviation `scale`.
  static float around(std::uint64_t array, std::uint64_t i, double scale) {
    double sum = -2;
    for (std::uint64_t part = 0; part < 4; ++part) sum += rng::uniform(4 * array + part, i);
    return static_cast<float>(scale * std::sqrt(3.0) * sum);
  }
  static float anywhere(std::uint64_t array, std::uint64_t i, int reach) {
    const std::uint64_t bits = rng::at(100 + array, i);
    if (bits % 64 == 0) return 0;
    const double exponent = reach * (2 * rng::uniform(200 + array, i) - 1);
    const double magnitude = std::exp2(exponent);
    return static_cast<float>((bits & 64) != 0 ? -magnitude : magnitude);
  }

  const KernelCase& what_;
};

// An array as it rests and as fp32 values.
class Array {
 public:
  explicit Array(DType dtype) : dtype_(dtype), rest_(kElements * size_of(dtype).value) {}

  template <class Value>
  void fill(Value&& value) {
    std::vector<float> drawn(kElements);
    for (std::uint64_t i = 0; i < kElements; ++i) drawn[i] = value(i);
    convert(rest_.data(), dtype_, drawn.data(), DType::fp32, kElements);
  }
  std::vector<float> values() const {
    std::vector<float> widened(kElements);
    convert(widened.data(), DType::fp32, rest_.data(), dtype_, kElements);
    return widened;
  }
  void* data() { return rest_.data(); }

 private:
  const DType dtype_;
  std::vector<std::byte> rest_;
};

class LargestError {
 public:
  LargestError(std::string state, DType dtype) : dtype_(dtype), error_{.state = std::move(state)} {}

  void compare(double found, const Formed& right, bool typical) {
    const double bound = kTwoRoundings * right.largest +
                         std::max(half_ulp(dtype_, right.value), half_ulp(dtype_, found));
    const double error = std::abs(found - right.value);
    if (error == 0) return;
    const double fraction = error / bound;  // infinite where nothing may be wrong
    if (typical) error_.fraction_of_typical = std::max(error_.fraction_of_typical, fraction);
    if (fraction <= error_.fraction) return;
    error_.fraction = fraction;
    error_.operand = right.operand;
  }
  const StateError& error() const { return error_; }

 private:
  const DType dtype_;
  StateError error_;
};

// Where rounding may have turned the sign of lion's direction, the other sign is right as well.
Formed nearer_weight(const States& right, double found, double step) {
  const bool either = std::abs(right.direction.value) <= kTwoRoundings * right.direction.largest;
  if (!either || right.direction.largest == 0) return right.weight;
  const double before =
      right.weight.value + step * ((right.direction.value > 0) - (right.direction.value < 0));
  Formed nearest = right.weight;
  for (const double sign : {-1.0, 0.0, 1.0}) {
    const double value = before - step * sign;
    if (std::abs(found - value) < std::abs(found - nearest.value)) nearest.value = value;
  }
  return nearest;
}

}  // namespace

std::vector<StateError> largest_errors(const KernelCase& what) {
  const UpdateCoefficients coefficients = coefficients_of(what.rule,
                                                          {.learning_rate = 3e-4,
                                                           .weight_decay = 0.1,
                                                           .beta1 = 0.9,
                                                           .beta2 = 0.95,
                                                           .epsilon = 1e-8,
                                                           .momentum = 0.9},
                                                          10, 0.37);
  const std::size_t moments = moments_of(what.rule);
  const Draw draw(what);
  Array gradient(what.gradient);
  Array weights(what.weights);
  Array param(what.param_type());
  std::array<Array, 2> m{Array(what.moments), Array(what.moments)};
  gradient.fill([&](std::uint64_t i) { return draw.gradient(i); });
  weights.fill([&](std::uint64_t i) { return draw.weight(i); });
  for (std::size_t k = 0; k < moments; ++k) {
    m[k].fill([&](std::uint64_t i) { return draw.moment(k, i); });
  }
  const std::vector<float> g = gradient.values();
  const std::vector<float> w = weights.values();
  const std::array<std::vector<float>, 2> before{m[0].values(), m[1].values()};

  run_on_host(UpdateOp{.rule = what.rule,
                       .gradient = gradient.data(),
                       .gradient_dtype = what.gradient,
                       .weights = weights.data(),
                       .weights_dtype = what.weights,
                       .moments = {m[0].data(), m[1].data()},
                       .moments_dtype = what.moments,
                       .param = what.param ? param.data() : nullptr,
                       .param_dtype = what.param_type(),
                       .count_elems = kElements,
                       .runs = {{0, kElements, coefficients}}});

  const std::vector<float> new_w = weights.values();
  const std::array<std::vector<float>, 2> after{m[0].values(), m[1].values()};
  const Reference reference(what.rule, coefficients);
  LargestError weight("weight", what.weights);
  std::array<LargestError, 2> moment{LargestError("moment1", what.moments),
                                     LargestError("moment2", what.moments)};
  for (std::uint64_t i = 0; i < kElements; ++i) {
    const bool typical = Draw::typical(i);
    const States right = reference({g[i], w[i], {before[0][i], before[1][i]}});
    weight.compare(new_w[i], nearer_weight(right, new_w[i], coefficients.step), typical);
    for (std::size_t k = 0; k < moments; ++k) {
      moment[k].compare(after[k][i], right.moments[k], typical);
    }
  }
  std::vector<StateError> errors{weight.error()};
  for (std::size_t k = 0; k < moments; ++k) errors.push_back(moment[k].error());
  return errors;
}

}  // namespace strata::tool
