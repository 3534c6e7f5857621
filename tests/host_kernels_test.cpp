// The vector kernels of the host against the bodies that define what an op does
// (base/element_bodies.hpp), bit for bit, with every set of instructions that this machine has.
#include "base/host_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/element_bodies.hpp"
#include "optim/optimizer.hpp"
#include "support/guarded_array.hpp"
#include "support/hostile_floats.hpp"

namespace strata::test {
namespace {

constexpr std::array kDTypes = {DType::fp32, DType::bf16, DType::fp16};
constexpr std::array<std::uint64_t, 8> kSizes = {0, 1, 7, 8, 15, 17, 1000, kBlockElems + 1};
constexpr std::uint64_t kSeed = 41;

struct Formats {
  DType gradient = DType::bf16;
  DType weights = DType::fp32;
  std::optional<DType> param;
  DType moments = DType::fp32;

  std::string text() const {
    return std::string(name_of(gradient)) + " gradients, " + std::string(name_of(weights)) +
           " weights, " + std::string(param ? name_of(*param) : "no") + " parameters beside, " +
           std::string(name_of(moments)) + " moments";
  }
};

std::vector<Formats> all_formats() {
  std::vector<Formats> all;
  for (const DType gradient : kDTypes) {
    for (const DType moments : {DType::fp32, DType::bf16}) {
      all.push_back({gradient, DType::fp32, DType::bf16, moments});
      all.push_back({gradient, DType::fp32, DType::fp16, moments});
      for (const DType weights : kDTypes) all.push_back({gradient, weights, {}, moments});
    }
  }
  return all;
}

// What training uses, and the ends of what it might.
std::vector<UpdateCoefficients> coefficients_for(UpdateRule rule) {
  const Hyperparameters usual{.learning_rate = 3e-3, .weight_decay = 0.1, .momentum = 0.9};
  Hyperparameters slow = usual, fast = usual, undecayed = usual, long_memory = usual;
  slow.learning_rate = 1e-12;
  fast.learning_rate = 1e3;
  undecayed.weight_decay = 0;
  long_memory.beta2 = 0.999999;
  constexpr std::uint64_t kLateUpdate = (1U << 24) + 1;
  return {coefficients_of(rule, usual, 1, 1),
          coefficients_of(rule, slow, 100, 1.0 / 3),
          coefficients_of(rule, fast, 2, 1),
          coefficients_of(rule, undecayed, 7, 0x1p-16),
          coefficients_of(rule, usual, kLateUpdate, 0.7),
          coefficients_of(rule, long_memory, 3, 1)};
}

// Elements drawn once: the conversions to every mixture of formats are cheap.
struct Values {
  std::vector<float> gradient, poisoned, weights, moments[2];

  explicit Values(std::uint64_t count) {
    RandomStream random(kSeed);
    for (std::uint64_t i = 0; i < count; ++i) {
      gradient.push_back(hostile_float(random));
      // The last NaNs become a zero and an infinity where their bits are rounded as numbers.
      const float bad[] = {INFINITY, -INFINITY, NAN, std::bit_cast<float>(0x7FFFFFFFU),
                           std::bit_cast<float>(0x7F800001U)};
      poisoned.push_back(i % 5 == 0 ? bad[random.below(std::size(bad))] : gradient.back());
      weights.push_back(hostile_float(random));
      moments[0].push_back(std::abs(hostile_float(random)));  // of adagrad a sum of squares
      moments[1].push_back(std::abs(hostile_float(random)));
    }
  }
};

const Values& values() {
  static const Values all(kBlockElems + 1);
  return all;
}

// One tile of every array that an update reads or writes.
struct Tile {
  Formats formats;
  std::uint64_t count;
  GuardedArray gradient, weights, param, moment1, moment2;

  Tile(const Formats& f, std::uint64_t elems, bool poisoned = false)
      : formats(f),
        count(elems),
        gradient(f.gradient, elems, 1),
        weights(f.weights, elems, 3),
        param(f.param.value_or(DType::bf16), elems, 5),
        moment1(f.moments, elems, 7),
        moment2(f.moments, elems, 2) {
    for (std::uint64_t i = 0; i < elems; ++i) {
      gradient.set(i, poisoned ? values().poisoned[i] : values().gradient[i]);
      weights.set(i, values().weights[i]);
      moment1.set(i, values().moments[0][i]);
      moment2.set(i, values().moments[1][i]);
    }
  }

  UpdateOp op(UpdateRule rule, std::vector<UpdateRun> runs) {
    return {.rule = rule,
            .gradient = gradient.data(),
            .gradient_dtype = formats.gradient,
            .weights = weights.data(),
            .weights_dtype = formats.weights,
            .moments = {moment1.data(), moment2.data()},
            .moments_dtype = formats.moments,
            .param = formats.param ? param.data() : nullptr,
            .param_dtype = formats.param.value_or(DType::bf16),
            .count_elems = count,
            .runs = std::move(runs)};
  }

  void expect_same(const Tile& other) const {
    EXPECT_TRUE(gradient.same_as(other.gradient)) << "gradients";
    EXPECT_TRUE(weights.same_as(other.weights)) << "weights";
    EXPECT_TRUE(param.same_as(other.param)) << "parameters";
    EXPECT_TRUE(moment1.same_as(other.moment1)) << "first moments";
    EXPECT_TRUE(moment2.same_as(other.moment2)) << "second moments";
  }
};

// Runs of every length and at every place, with gaps and without; all coefficients in turn.
std::vector<UpdateRun> scattered_runs(UpdateRule rule, std::uint64_t count, std::uint64_t seed) {
  const std::vector<UpdateCoefficients> coefficients = coefficients_for(rule);
  RandomStream random(seed);
  std::vector<UpdateRun> runs;
  for (std::uint64_t at = random.below(40); at < count;) {
    const std::uint64_t longest = random.below(2) == 0 ? 20 : count / 8;
    const std::uint64_t length = std::min(random.below(longest + 1), count - at);
    runs.push_back({at, length, coefficients[runs.size() % coefficients.size()]});
    at += length + (random.below(3) == 0 ? 0 : random.below(40));
  }
  return runs;
}

void update_one_by_one(const UpdateOp& op) {
  element::for_each_body(op, [](const auto& body, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) body(i);
  });
}

void expect_update_agrees(UpdateRule rule, const Tile& before, const std::vector<UpdateRun>& runs) {
  Tile got = before;
  Tile want = before;
  run_on_host(got.op(rule, runs));
  update_one_by_one(want.op(rule, runs));
  got.expect_same(want);
}

class UpdateKernels : public ::testing::TestWithParam<UpdateRule> {
 protected:
  static void expect_all_formats_agree(std::string_view instructions) {
    for (const Formats& formats : all_formats()) {
      SCOPED_TRACE(std::string(instructions) + ", " + formats.text());
      for (const std::uint64_t count : kSizes) {
        SCOPED_TRACE(std::to_string(count) + " elements");
        const Tile before(formats, count);
        if (count > 100) {
          expect_update_agrees(GetParam(), before, scattered_runs(GetParam(), count, count));
          continue;
        }
        for (const UpdateCoefficients& c : coefficients_for(GetParam())) {
          expect_update_agrees(GetParam(), before, {{0, count, c}});
        }
      }
      if (HasFailure()) return;  // once is enough to read
    }
  }

  static void expect_nonfinite_gradients_agree(std::string_view instructions) {
    for (const Formats& formats : all_formats()) {
      SCOPED_TRACE(std::string(instructions) + ", " + formats.text());
      for (const UpdateCoefficients& c : coefficients_for(GetParam())) {
        expect_update_agrees(GetParam(), Tile(formats, 1000, true), {{3, 990, c}});
      }
      if (HasFailure()) return;
    }
  }

  // Pieces that begin at multiples of 64, some of them empty, dealt to threads in no order.
  static void expect_pieces_agree(const Formats& formats, unsigned threads, std::uint64_t pieces) {
    constexpr std::uint64_t kCount = 20'001;
    RandomStream random(threads + pieces);
    std::vector<std::uint64_t> cuts = {0, kCount};
    while (cuts.size() < pieces + 1) cuts.push_back(64 * random.below(kCount / 64 + 1));
    std::sort(cuts.begin(), cuts.end());
    const Tile before(formats, kCount);
    Tile whole = before;
    Tile split = before;
    const std::vector<UpdateRun> runs = scattered_runs(GetParam(), kCount, pieces);
    run_on_host(whole.op(GetParam(), runs));
    const UpdateOp op = split.op(GetParam(), runs);
    std::vector<std::jthread> workers;
    for (unsigned worker = 0; worker < threads; ++worker) {
      workers.emplace_back([&, worker] {
        for (std::size_t k = pieces; k-- > 0;) {
          if (k % threads == worker) run_on_host(op, cuts[k], cuts[k + 1]);
        }
      });
    }
    workers.clear();
    split.expect_same(whole);
  }
};

TEST_P(UpdateKernels, AgreeWithTheBodiesInEveryFormat) {
  host_kernels::for_each_instruction_set(expect_all_formats_agree);
}

TEST_P(UpdateKernels, AgreeWhereGradientsAreNotFinite) {
  host_kernels::for_each_instruction_set(expect_nonfinite_gradients_agree);
}

TEST_P(UpdateKernels, AnySplitAndAnyThreadsGiveTheSameBits) {
  host_kernels::for_each_instruction_set([](std::string_view instructions) {
    for (const Formats& formats : {Formats{DType::bf16, DType::fp32, DType::bf16, DType::fp32},
                                   Formats{DType::fp32, DType::fp32, {}, DType::bf16},
                                   Formats{DType::fp16, DType::fp16, {}, DType::bf16}}) {
      for (const unsigned threads : {1U, 2U, 3U, 8U}) {
        for (const std::uint64_t pieces : {2U, 16U, 200U}) {
          SCOPED_TRACE(std::string(instructions) + ", " + formats.text() + ", " +
                       std::to_string(threads) + " threads, " + std::to_string(pieces) + " pieces");
          expect_pieces_agree(formats, threads, pieces);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Every, UpdateKernels, ::testing::ValuesIn(kUpdateRules),
                         [](const auto& rule) { return std::string(name_of(rule.param)); });

// A test of NaNs that equal all NaNs would see nothing.
TEST(UpdateKernelValues, MostResultsAreNumbers) {
  for (const UpdateRule rule : kUpdateRules) {
    Tile tile({}, 1000);
    run_on_host(tile.op(rule, {{0, 1000, coefficients_for(rule)[0]}}));
    int finite = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) finite += std::isfinite(tile.weights.at(i)) ? 1 : 0;
    EXPECT_GT(finite, 900) << name_of(rule);
  }
}

TEST(InstructionSets, AreOnesOfThisMachineAndTheFirstIsBack) {
  static std::vector<std::string> names;
  const std::string before(host_kernels::instruction_set());
  names.clear();
  host_kernels::for_each_instruction_set([](std::string_view name) {
    names.emplace_back(name);
    EXPECT_EQ(host_kernels::instruction_set(), name);
  });
  EXPECT_EQ(std::count(names.begin(), names.end(), before), 1);
#if defined(__x86_64__)
  EXPECT_EQ(std::count(names.begin(), names.end(), "AVX2"), 1);  // the floor
#endif
  EXPECT_EQ(host_kernels::instruction_set(), before);
}

// Sums and the flag, by sixteen lanes of each block and their fold.
struct Sums {
  std::vector<double> blocks;
  std::uint32_t nonfinite = 0;

  explicit Sums(std::uint64_t count) : blocks((count + kBlockElems - 1) / kBlockElems + 1, -77.0) {}

  bool same_as(const Sums& other) const {
    if ((nonfinite != 0) != (other.nonfinite != 0)) return false;
    return std::equal(blocks.begin(), blocks.end(), other.blocks.begin(), [](double a, double b) {
      return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
    });
  }
};

void sum_lane_by_lane(const GradientStatsOp& op) {
  element::with_block_sums(op, [&](const auto& body, std::uint64_t blocks) {
    for (std::uint64_t block = 0; block < blocks; ++block) {
      double lanes[element::kSumLanes];
      for (std::uint64_t lane = 0; lane < element::kSumLanes; ++lane) {
        lanes[lane] = body.lane(block, lane, op.nonfinite);
      }
      body.finish(block, lanes);
    }
  });
}

void expect_sums_agree(GuardedArray gradient, DType dtype, std::uint64_t count) {
  Sums got(count), want(count);
  run_on_host(GradientStatsOp{gradient.data(), dtype, count, got.blocks.data(), &got.nonfinite});
  sum_lane_by_lane({gradient.data(), dtype, count, want.blocks.data(), &want.nonfinite});
  EXPECT_TRUE(got.same_as(want)) << count << " elements, " << name_of(dtype);
}

GuardedArray hostile_array(DType dtype, std::uint64_t count, std::uint64_t shift,
                           std::uint64_t seed) {
  GuardedArray array(dtype, count, shift);
  RandomStream random(seed);
  for (std::uint64_t i = 0; i < count; ++i) array.set(i, hostile_float(random));
  return array;
}

TEST(SumKernels, AgreeWithTheLanes) {
  host_kernels::for_each_instruction_set([](std::string_view instructions) {
    SCOPED_TRACE(instructions);
    for (const DType dtype : kDTypes) {
      for (const std::uint64_t count : kSizes) {
        expect_sums_agree(hostile_array(dtype, count, 1, count), dtype, count);
      }
      expect_sums_agree(hostile_array(dtype, 2 * kBlockElems + 37, 3, 5), dtype,
                        2 * kBlockElems + 37);
    }
  });
}

// Of 48 elements and a tail of any length, each in turn; of the second block as well.
TEST(SumKernels, FlagWhatIsNotFiniteInEveryLaneAndTail) {
  host_kernels::for_each_instruction_set([](std::string_view instructions) {
    SCOPED_TRACE(instructions);
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      for (const DType dtype : kDTypes) {
        for (std::uint64_t count = 1; count < 64; ++count) {
          for (std::uint64_t at = 0; at < count; ++at) {
            GuardedArray gradient(dtype, count, at % 3);
            for (std::uint64_t i = 0; i < count; ++i) gradient.set(i, i == at ? bad : 65504.0F);
            Sums got(count);
            run_on_host(
                GradientStatsOp{gradient.data(), dtype, count, got.blocks.data(), &got.nonfinite});
            ASSERT_EQ(got.nonfinite, 1U) << bad << " at " << at << " of " << count;
            ASSERT_EQ(got.blocks[1], -77.0);
            expect_sums_agree(gradient, dtype, count);
          }
        }
      }
    }
  });
}

TEST(SumKernels, FlagLargeFiniteOnesNever) {
  host_kernels::for_each_instruction_set([](std::string_view) {
    for (const DType dtype : kDTypes) {
      const float largest = dtype == DType::fp32   ? std::numeric_limits<float>::max()
                            : dtype == DType::bf16 ? 0x1.FEp127F
                                                   : 65504.0F;
      GuardedArray gradient(dtype, 77, 1);
      for (std::uint64_t i = 0; i < 77; ++i) gradient.set(i, i % 2 == 0 ? largest : -largest);
      Sums sums(77);
      run_on_host(GradientStatsOp{gradient.data(), dtype, 77, sums.blocks.data(), &sums.nonfinite});
      EXPECT_EQ(sums.nonfinite, 0U) << name_of(dtype);
    }
  });
}

void expect_accumulation_agrees(DType dtype, std::uint64_t count, bool overwrite, bool sums) {
  GuardedArray gradient = hostile_array(dtype, count, 1, count);
  GuardedArray got = hostile_array(DType::fp32, count, 3, count + 1);
  if (count > 8) {  // finite and finite, and their sum is not
    gradient.set(count - 1, dtype == DType::fp16 ? 1.0F : 0x1.FEp127F);
    got.set(count - 1, 0x1.FFp127F);
  }
  GuardedArray want = got;
  Sums got_sums(count), want_sums(count);
  AccumulateOp op{static_cast<float*>(got.data()), gradient.data(), dtype, count, overwrite};
  if (sums) {
    op.block_sums = got_sums.blocks.data();
    op.nonfinite = &got_sums.nonfinite;
  }
  run_on_host(op);

  op.accumulator = static_cast<float*>(want.data());
  element::for_each_body(op, [](const auto& body, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) body(i);
  });
  op.block_sums = sums ? want_sums.blocks.data() : nullptr;
  op.nonfinite = sums ? &want_sums.nonfinite : nullptr;
  sum_lane_by_lane(element::sums_of(op));
  EXPECT_TRUE(got.same_as(want)) << count << " elements, " << name_of(dtype);
  EXPECT_TRUE(got_sums.same_as(want_sums)) << count << " elements, " << name_of(dtype);
  if (sums && count > 8 && !overwrite && dtype != DType::fp16) {
    EXPECT_EQ(got_sums.nonfinite, 1U);
  }
}

TEST(AccumulateKernels, AgreeWithTheBodies) {
  host_kernels::for_each_instruction_set([](std::string_view instructions) {
    SCOPED_TRACE(instructions);
    for (const DType dtype : kDTypes) {
      for (const std::uint64_t count : kSizes) {
        for (const bool overwrite : {true, false}) {
          expect_accumulation_agrees(dtype, count, overwrite, false);
          expect_accumulation_agrees(dtype, count, overwrite, true);
        }
      }
      expect_accumulation_agrees(dtype, 2 * kBlockElems + 37, false, true);
    }
  });
}

}  // namespace
}  // namespace strata::test
