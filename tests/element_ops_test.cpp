#include "strata/element_ops.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/element.hpp"
#include "base/rng.hpp"

namespace strata {
namespace {

using element::Bf16;
using element::Fp16;

constexpr double kInf = std::numeric_limits<double>::infinity();

// A 16-bit format by its definition, in double arithmetic: the reference for all conversions.
struct Format {
  int fraction_bits;
  int min_exponent;  // of normal numbers

  double largest() const {
    return (2 - std::ldexp(1.0, -fraction_bits)) * std::ldexp(1.0, 1 - min_exponent);
  }

  double decode(std::uint16_t bits) const {
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int exponent = (bits & 0x7FFF) >> fraction_bits;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const double part = std::ldexp(fraction, -fraction_bits);
    if (exponent == (0x7FFF >> fraction_bits)) return fraction == 0 ? sign * kInf : std::nan("");
    if (exponent == 0) return sign * std::ldexp(part, min_exponent);
    return sign * std::ldexp(1 + part, min_exponent + exponent - 1);
  }

  // To nearest, ties to even. Division and product by a power of two are exact in double.
  double round(double value) const {
    if (std::isnan(value) || std::isinf(value) || value == 0) return value;
    const int exponent = std::max(std::ilogb(value), min_exponent);
    const double quantum = std::ldexp(1.0, exponent - fraction_bits);
    const double rounded = std::nearbyint(value / quantum) * quantum;
    return std::abs(rounded) > largest() ? std::copysign(kInf, value) : rounded;
  }
};

constexpr Format kBf16{7, -126};
constexpr Format kFp16{10, -14};

// Equal as numbers and in the sign of zero; any NaN equals any NaN.
bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class T>
void expect_rounds(const Format& format, float value) {
  const double got = format.decode(element::from_float<T>(value).bits);
  ASSERT_TRUE(same(got, format.round(static_cast<double>(value))))
      << fmt::format("{:a} became {:a}", value, got);
}

// Every value of the format, every midpoint between neighbours, and the floats beside those.
template <class T>
void expect_all_borders_round(const Format& format) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double value = format.decode(static_cast<std::uint16_t>(bits));
    if (!std::isfinite(value)) continue;
    const int exponent = value == 0 ? format.min_exponent : std::ilogb(value);
    const double quantum =
        std::ldexp(1.0, std::max(exponent, format.min_exponent) - format.fraction_bits);
    const auto tie = static_cast<float>(value + std::copysign(quantum / 2, value));
    for (const float base : {static_cast<float>(value), tie}) {
      expect_rounds<T>(format, base);
      expect_rounds<T>(format, std::nextafterf(base, 0));
      expect_rounds<T>(format, std::nextafterf(base, std::copysign(INFINITY, base)));
    }
  }
}

template <class T>
void expect_random_floats_round(const Format& format) {
  constexpr std::uint64_t kSeed = 20;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(rng::at(kSeed, i));
    expect_rounds<T>(format, std::bit_cast<float>(bits));
    // Exponents at which fp16 is interesting are rare among random bits.
    const std::uint32_t near_one = (bits & 0x807FFFFFU) | ((90 + (bits >> 23) % 60) << 23);
    expect_rounds<T>(format, std::bit_cast<float>(near_one));
  }
}

template <class T>
void expect_all_values_decode(const Format& format) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float got = element::to_float(T{bits});
    ASSERT_TRUE(same(static_cast<double>(got), format.decode(bits))) << fmt::format("{:#x}", bits);
    ASSERT_EQ(element::is_nonfinite(got), !std::isfinite(format.decode(bits)));
    // And back: the same bits, but that a signalling NaN becomes quiet.
    const std::uint16_t back = element::from_float<T>(got).bits;
    const auto quiet = static_cast<std::uint16_t>(1 << (format.fraction_bits - 1));
    ASSERT_EQ(back, std::isnan(got) ? bits | quiet : bits) << fmt::format("{:#x}", bits);
  }
}

TEST(Bf16, DecodesEveryValue) { expect_all_values_decode<Bf16>(kBf16); }
TEST(Fp16, DecodesEveryValue) { expect_all_values_decode<Fp16>(kFp16); }
TEST(Bf16, RoundsAtEveryBorder) { expect_all_borders_round<Bf16>(kBf16); }
TEST(Fp16, RoundsAtEveryBorder) { expect_all_borders_round<Fp16>(kFp16); }
TEST(Bf16, RoundsRandomFloats) { expect_random_floats_round<Bf16>(kBf16); }
TEST(Fp16, RoundsRandomFloats) { expect_random_floats_round<Fp16>(kFp16); }

TEST(Bf16, KnownBits) {
  EXPECT_EQ(element::from_float<Bf16>(1.0F).bits, 0x3F80);
  EXPECT_EQ(element::from_float<Bf16>(1.00390625F).bits, 0x3F80);  // tie, down to even
  EXPECT_EQ(element::from_float<Bf16>(1.01171875F).bits, 0x3F82);  // tie, up to even
  EXPECT_EQ(element::from_float<Bf16>(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(element::from_float<Bf16>(-0.0F).bits, 0x8000);
}

TEST(Fp16, KnownBits) {
  EXPECT_EQ(element::from_float<Fp16>(1.0F).bits, 0x3C00);
  EXPECT_EQ(element::from_float<Fp16>(65504.0F).bits, 0x7BFF);
  EXPECT_EQ(element::from_float<Fp16>(65519.996F).bits, 0x7BFF);
  EXPECT_EQ(element::from_float<Fp16>(65520.0F).bits, 0x7C00);
  EXPECT_EQ(element::from_float<Fp16>(-0x1p-24F).bits, 0x8001);
  EXPECT_EQ(element::from_float<Fp16>(0x1p-25F).bits, 0x0000);  // tie, down to even
}

TEST(Convert, GoesBetweenAllTypes) {
  const std::vector<float> values = {0.0F, -1.5F, 1.00390625F, 3.0e5F, 1e-6F};
  const auto rounded = [](DType dtype, float value) {
    if (dtype == DType::fp32) return static_cast<double>(value);
    return (dtype == DType::bf16 ? kBf16 : kFp16).round(static_cast<double>(value));
  };
  for (const DType from : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType to : {DType::fp32, DType::bf16, DType::fp16}) {
      std::array<std::byte, 64> source{};
      std::array<std::byte, 64> target{};
      std::vector<float> result(values.size());
      convert(source.data(), from, values.data(), DType::fp32, values.size());
      convert(target.data(), to, source.data(), from, values.size());
      convert(result.data(), DType::fp32, target.data(), to, values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto once = static_cast<float>(rounded(from, values[i]));
        EXPECT_EQ(static_cast<double>(result[i]), rounded(to, once))
            << name_of(from) << " to " << name_of(to) << ", element " << i;
      }
      EXPECT_EQ(target[values.size() * size_of(to).value], std::byte{0}) << "wrote too far";
    }
  }
}

// Gradients in `dtype`, and what they are as doubles.
struct Gradients {
  std::vector<std::byte> bytes;
  std::vector<double> values;
};

Gradients random_gradients(std::uint64_t seed, std::size_t count, DType dtype) {
  std::vector<float> floats(count);
  for (std::size_t i = 0; i < count; ++i) {
    floats[i] = static_cast<float>((rng::uniform(seed, i) - 0.5) * 4);
  }
  Gradients gradients{std::vector<std::byte>(count * size_of(dtype).value), {}};
  convert(gradients.bytes.data(), dtype, floats.data(), DType::fp32, count);
  convert(floats.data(), DType::fp32, gradients.bytes.data(), dtype, count);
  gradients.values.assign(floats.begin(), floats.end());
  return gradients;
}

TEST(Accumulate, OverwritesThenAdds) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::size_t count : {0, 1, 7, 1000}) {
      const Gradients first = random_gradients(1, count, dtype);
      const Gradients second = random_gradients(2, count, dtype);
      std::vector<float> sum(count + 1, -77.0F);
      run_on_host(AccumulateOp{sum.data(), first.bytes.data(), dtype, count, true});
      run_on_host(AccumulateOp{sum.data(), second.bytes.data(), dtype, count, false});
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(sum[i], static_cast<float>(first.values[i] + second.values[i]));
      }
      EXPECT_EQ(sum[count], -77.0F);
    }
  }
}

TEST(GradientStats, SumsMatchAWiderSum) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{17}, std::size_t{kBlockElems},
                                    std::size_t{kBlockElems + 1}, std::size_t{200'001}}) {
      const Gradients gradients = random_gradients(3, count, dtype);
      const std::size_t blocks = (count + kBlockElems - 1) / kBlockElems;
      std::vector<double> sums(blocks + 1, -1);
      std::uint32_t nonfinite = 0;
      run_on_host(GradientStatsOp{gradients.bytes.data(), dtype, count, sums.data(), &nonfinite});
      for (std::size_t block = 0; block < blocks; ++block) {
        long double expected = 0;
        for (std::size_t i = block * kBlockElems; i < std::min(count, (block + 1) * kBlockElems);
             ++i) {
          expected += static_cast<long double>(gradients.values[i]) * gradients.values[i];
        }
        // 65536 / 16 additions per lane, each within half an ulp.
        EXPECT_NEAR(sums[block], static_cast<double>(expected),
                    4100 * 0x1p-53 * static_cast<double>(expected));
      }
      EXPECT_EQ(sums[blocks], -1);
      EXPECT_EQ(nonfinite, 0U);
    }
  }
}

TEST(GradientStats, ExactSumsAreExact) {
  // Squares of small integers: every order of summation gives the same double.
  std::vector<float> gradient(kBlockElems + 3);
  double expected[2] = {};
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 37) - 18;
    expected[i / kBlockElems] += static_cast<double>(gradient[i]) * gradient[i];
  }
  double sums[2] = {};
  std::uint32_t nonfinite = 0;
  run_on_host(GradientStatsOp{gradient.data(), DType::fp32, gradient.size(), sums, &nonfinite});
  EXPECT_EQ(sums[0], expected[0]);
  EXPECT_EQ(sums[1], expected[1]);
}

TEST(GradientStats, BlocksDoNotDependOnTheCallsThatSumThem) {
  const std::size_t count = 3 * kBlockElems + 12'345;
  const Gradients gradients = random_gradients(4, count, DType::bf16);
  std::vector<double> at_once(4);
  std::vector<double> one_by_one(4);
  std::uint32_t nonfinite = 0;
  run_on_host(
      GradientStatsOp{gradients.bytes.data(), DType::bf16, count, at_once.data(), &nonfinite});
  for (std::size_t block = 0; block < 4; ++block) {
    const std::size_t begin = block * kBlockElems;
    run_on_host(GradientStatsOp{gradients.bytes.data() + begin * 2, DType::bf16,
                                std::min(kBlockElems, count - begin), &one_by_one[block],
                                &nonfinite});
  }
  EXPECT_EQ(at_once, one_by_one);
}

TEST(GradientStats, FlagsNonfiniteWhereverItStands) {
  const std::size_t count = kBlockElems + 21;
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{15}, std::size_t{16}, std::size_t{kBlockElems - 1},
          std::size_t{kBlockElems}, std::size_t{kBlockElems + 16}, count - 1}) {
      std::vector<float> gradient(count, 0.5F);
      gradient[at] = bad;
      for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
        std::vector<std::byte> bytes(count * 4);
        convert(bytes.data(), dtype, gradient.data(), DType::fp32, count);
        double sums[2] = {};
        std::uint32_t nonfinite = 0;
        run_on_host(GradientStatsOp{bytes.data(), dtype, count, sums, &nonfinite});
        ASSERT_NE(nonfinite, 0U) << bad << " at " << at << " in " << name_of(dtype);
      }
    }
  }
}

TEST(GradientStats, KeepsAFlagThatIsSet) {
  const float gradient = 1;
  double sum = 0;
  std::uint32_t nonfinite = 1;
  run_on_host(GradientStatsOp{&gradient, DType::fp32, 1, &sum, &nonfinite});
  EXPECT_EQ(nonfinite, 1U);
}

TEST(GradientStats, LargeFiniteGradientsAreFinite) {
  const float gradient = std::numeric_limits<float>::max();
  double sum = 0;
  std::uint32_t nonfinite = 0;
  run_on_host(GradientStatsOp{&gradient, DType::fp32, 1, &sum, &nonfinite});
  EXPECT_EQ(nonfinite, 0U);
  EXPECT_EQ(sum, static_cast<double>(gradient) * static_cast<double>(gradient));
}

// What a trainer says about one step; the op's coefficients follow from it.
struct Hyperparameters {
  double lr = 0.01;
  double weight_decay = 0.1;
  double epsilon = 1e-8;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double gradient_factor = 1;
};

UpdateCoefficients coefficients_of(const Hyperparameters& h, int step) {
  return {.factor = static_cast<float>(h.gradient_factor),
          .decay = static_cast<float>(h.lr * h.weight_decay),
          .blend1 = static_cast<float>(1 - h.beta1),
          .blend2 = static_cast<float>(1 - h.beta2),
          .epsilon = static_cast<float>(h.epsilon),
          .step = static_cast<float>(h.lr / (1 - std::pow(h.beta1, step))),
          .second_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, step)))};
}

struct Reference {
  std::vector<double> weight, moment1, moment2;

  // Algorithm 2 of Loshchilov & Hutter, in float64.
  void step(const Hyperparameters& h, int t, const std::vector<double>& gradient, std::size_t begin,
            std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const double g = gradient[i] * h.gradient_factor;
      moment1[i] = h.beta1 * moment1[i] + (1 - h.beta1) * g;
      moment2[i] = h.beta2 * moment2[i] + (1 - h.beta2) * g * g;
      const double m_hat = moment1[i] / (1 - std::pow(h.beta1, t));
      const double v_hat = moment2[i] / (1 - std::pow(h.beta2, t));
      weight[i] -= h.lr * (m_hat / (std::sqrt(v_hat) + h.epsilon) + h.weight_decay * weight[i]);
    }
  }
};

struct State {
  std::vector<float> weight, moment1, moment2;
  std::vector<std::uint16_t> param;

  explicit State(std::size_t count)
      : weight(count), moment1(count), moment2(count), param(count, 0xDEAD) {
    for (std::size_t i = 0; i < count; ++i) {
      weight[i] = static_cast<float>(rng::uniform(9, i) - 0.5);
    }
  }
  Reference reference() const {
    return {{weight.begin(), weight.end()},
            std::vector<double>(weight.size()),
            std::vector<double>(weight.size())};
  }
  UpdateOp op(const Gradients& gradients, DType gradient_dtype, DType param_dtype,
              std::vector<UpdateRun> runs) {
    return {.gradient = gradients.bytes.data(),
            .gradient_dtype = gradient_dtype,
            .weights = weight.data(),
            .moments = {moment1.data(), moment2.data()},
            .param = param.data(),
            .param_dtype = param_dtype,
            .count_elems = weight.size(),
            .runs = std::move(runs)};
  }
};

// Ten steps of float32 lose a few ulps of the weight per step.
constexpr double kWeightBound = 2e-6;
constexpr double kMomentBound = 2e-6;

TEST(AdamW, FollowsAFloat64Reference) {
  const Hyperparameters h{.gradient_factor = 0.125};
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::size_t count : {0, 1, 3, 1001}) {
      State state(count);
      Reference reference = state.reference();
      for (int t = 1; t <= 10; ++t) {
        const Gradients gradients = random_gradients(static_cast<std::uint64_t>(t), count, dtype);
        run_on_host(state.op(gradients, dtype, DType::bf16, {{0, count, coefficients_of(h, t)}}));
        reference.step(h, t, gradients.values, 0, count);
      }
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_NEAR(state.weight[i], reference.weight[i], kWeightBound) << i;
        ASSERT_NEAR(state.moment1[i], reference.moment1[i], kMomentBound) << i;
        ASSERT_NEAR(state.moment2[i], reference.moment2[i], kMomentBound) << i;
        ASSERT_TRUE(same(kBf16.decode(state.param[i]), kBf16.round(state.weight[i]))) << i;
      }
    }
  }
}

TEST(AdamW, AgreesWithPyTorch) {
  // torch.optim.AdamW(lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1), three steps, in
  // torch.float64.
  const std::array<std::array<float, 5>, 3> gradients = {
      {{0.25F, -0.5F, 1, 2, 1e-4F}, {-0.125F, 0.75F, 1.5F, -3, 0}, {0.5F, 0, -2, 0.0625F, -1e-4F}}};
  const std::array<double, 5> weight = {0.479279667204, -1.24066302224, 1.97374811326,
                                        -0.00570180476623, -0.0148163723065};
  const std::array<double, 5> moment1 = {0.059, 0.027, 0.016, -0.10175, -1.9e-06};
  const std::array<double, 5> moment2 = {0.0003279844375, 0.00081143775, 0.007245751, 0.01298691025,
                                         1.998001e-11};

  std::array<float, 5> w = {0.5F, -1.25F, 2, 0, 1e-3F};
  std::array<float, 5> m{};
  std::array<float, 5> v{};
  for (int t = 1; t <= 3; ++t) {
    run_on_host(UpdateOp{.gradient = gradients[static_cast<std::size_t>(t - 1)].data(),
                         .gradient_dtype = DType::fp32,
                         .weights = w.data(),
                         .moments = {m.data(), v.data()},
                         .count_elems = 5,
                         .runs = {{0, 5, coefficients_of({}, t)}}});
  }
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(w[i], weight[i], 1e-6) << i;
    EXPECT_NEAR(m[i], moment1[i], 1e-6 * std::abs(moment1[i]) + 1e-9) << i;
    EXPECT_NEAR(v[i], moment2[i], 1e-6 * moment2[i]) << i;
  }
}

TEST(AdamW, TouchesItsRunsOnly) {
  const std::size_t count = 100;
  const Gradients gradients = random_gradients(6, count, DType::fp32);
  const Hyperparameters slow{.lr = 0.001};
  const Hyperparameters fast{.lr = 0.1};
  State state(count);
  const State before = state;
  Reference reference = state.reference();
  run_on_host(state.op(gradients, DType::fp32, DType::fp16,
                       {{1, 10, coefficients_of(slow, 1)}, {11, 50, coefficients_of(fast, 1)}}));
  reference.step(slow, 1, gradients.values, 1, 11);
  reference.step(fast, 1, gradients.values, 11, 61);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_NEAR(state.weight[i], reference.weight[i], kWeightBound) << i;
    if (i >= 1 && i < 61) {
      ASSERT_TRUE(same(kFp16.decode(state.param[i]), kFp16.round(state.weight[i]))) << i;
    } else {
      ASSERT_EQ(state.weight[i], before.weight[i]) << i;
      ASSERT_EQ(state.moment1[i], 0) << i;
      ASSERT_EQ(state.moment2[i], 0) << i;
      ASSERT_EQ(state.param[i], before.param[i]) << i;
    }
  }
}

TEST(AdamW, SplitRunsGiveTheSameBits) {
  const std::size_t count = 1000;
  const Gradients gradients = random_gradients(7, count, DType::bf16);
  const UpdateCoefficients c = coefficients_of({}, 1);
  State whole(count);
  State split(count);
  run_on_host(whole.op(gradients, DType::bf16, DType::bf16, {{0, count, c}}));
  run_on_host(split.op(gradients, DType::bf16, DType::bf16,
                       {{0, 1, c}, {1, 332, c}, {333, 0, c}, {333, 667, c}}));
  EXPECT_EQ(whole.weight, split.weight);
  EXPECT_EQ(whole.moment1, split.moment1);
  EXPECT_EQ(whole.moment2, split.moment2);
  EXPECT_EQ(whole.param, split.param);
}

TEST(AdamWDeathTest, RunsStayInTheTile) {
  const Gradients gradients = random_gradients(8, 11, DType::fp32);
  State state(10);
  const UpdateOp op =
      state.op(gradients, DType::fp32, DType::bf16, {{5, 6, coefficients_of({}, 1)}});
  EXPECT_DEATH(run_on_host(op), "outside its tile");
}

}  // namespace
}  // namespace strata
