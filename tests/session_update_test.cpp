// Updates of whole sessions: every optimizer and precision in every home, the verdict, loss scales.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/pinned.hpp"
#include "support/toy_runs.hpp"

namespace strata::test {
namespace {

using testing::HasSubstr;

using UpdateAlone = TestOnMachine<1>;
using UpdateRanks = TestOnMachine<2>;

ToyOptions small(std::uint32_t steps, std::uint32_t micro_batches = 1) {
  return {.steps = steps, .micro_batches = micro_batches, .scale_elems = 3000};
}

Config config_for(const Placed& placed, std::uint32_t micro_batches = 1) {
  Config config = toy_config(placed.param, placed.grad, placed.optimizer);
  config.engine.max_micro_batches = micro_batches;
  return config;
}

// The states after training in each home are those of the first.
void expect_equal_everywhere(const ToyOptions& options,
                             const std::function<void(Config&)>& choose) {
  std::string first;
  for (const Placed& placed : kPlacements) {
    Config config = config_for(placed, options.micro_batches);
    choose(config);
    const ToyResult result = run_alone(options, config);
    EXPECT_TRUE(result.steps.back().updated);
    if (first.empty()) first = result.states_hash;
    EXPECT_EQ(result.states_hash, first) << placed.name;
  }
}

TEST_F(UpdateAlone, EveryOptimizerGivesTheSameStatesInEveryHome) {
  struct Choice {
    const char* name;
    double momentum;
    bool nesterov;
  };
  for (const Choice& choice :
       {Choice{"adamw", 0, false}, Choice{"adam", 0, false}, Choice{"sgd", 0, false},
        Choice{"sgd", 0.9, false}, Choice{"sgd", 0.9, true}, Choice{"adagrad", 0, false},
        Choice{"lion", 0, false}}) {
    SCOPED_TRACE(fmt::format("{} {}", choice.name, choice.momentum));
    expect_equal_everywhere(small(3), [&](Config& config) {
      config.optimizer.name = choice.name;
      config.optimizer.momentum = choice.momentum;
      config.optimizer.nesterov = choice.nesterov;
      config.optimizer.clip_norm = 0.5;
    });
  }
}

TEST_F(UpdateAlone, EveryPrecisionGivesTheSameStatesInEveryHome) {
  struct Choice {
    DType param, reduce, moments;
    Config::Masters master;
  };
  constexpr auto kFp32 = Config::Masters::fp32;
  constexpr auto kParam = Config::Masters::same_as_param;
  for (const Choice& choice : {Choice{DType::bf16, DType::bf16, DType::bf16, kFp32},
                               Choice{DType::bf16, DType::bf16, DType::bf16, kParam},
                               Choice{DType::bf16, DType::fp32, DType::fp32, kParam},
                               Choice{DType::fp16, DType::fp16, DType::fp32, kFp32},
                               Choice{DType::fp16, DType::fp32, DType::bf16, kParam},
                               Choice{DType::fp32, DType::bf16, DType::fp32, kFp32}}) {
    SCOPED_TRACE(fmt::format("param {} reduce {} moments {}", name_of(choice.param),
                             name_of(choice.reduce), name_of(choice.moments)));
    for (const std::uint32_t micro_batches : {1U, 2U}) {
      expect_equal_everywhere(small(2, micro_batches), [&](Config& config) {
        config.precision.param = choice.param;
        config.precision.reduce = choice.reduce;
        config.precision.moments = choice.moments;
        config.precision.master = choice.master;
        config.loss_scale.initial = 256;
      });
    }
  }
}

TEST_F(UpdateRanks, ANonfiniteGradientIsSkippedWhereverItIs) {
  constexpr std::uint32_t kMicroBatches = 2;
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (const Placed& placed : kPlacements) {
      Config config = config_for(placed, kMicroBatches);
      config.precision.param = config.precision.reduce = dtype;
      config.loss_scale.initial = 256;
      const std::string before = run_on_ranks(2, small(1, kMicroBatches), config).states_hash;
      for (const std::uint32_t rank : {0U, 1U}) {
        for (std::uint32_t m = 0; m < kMicroBatches; ++m) {
          SCOPED_TRACE(
              fmt::format("{} {} rank {} micro-batch {}", name_of(dtype), placed.name, rank, m));
          ToyOptions spoiled = small(2, kMicroBatches);
          spoiled.nonfinite_step = 1;
          spoiled.nonfinite_rank = rank;
          spoiled.nonfinite_micro_batch = m;
          const ToyResult skipped = run_on_ranks(2, spoiled, config);
          EXPECT_TRUE(skipped.steps[1].skipped);
          EXPECT_EQ(skipped.states_hash, before);
        }
      }
    }
  }
}

// The gradients of a step depend on its number, so the clean step is compared between homes.
TEST_F(UpdateAlone, TheStepAfterASkippedOneIsClean) {
  ToyOptions options = small(4, 2);
  options.nonfinite_step = 1;
  options.nonfinite_micro_batch = 1;
  expect_equal_everywhere(options, [](Config& config) {
    config.precision.param = config.precision.reduce = DType::fp16;
    config.loss_scale.initial = 256;
  });
}

TEST_F(UpdateAlone, AScaleThatIsAPowerOfTwoRoundsNothing) {
  Config config = config_for(kPlacements[1]);
  config.optimizer.clip_norm = 0.1;
  const std::string unscaled = run_alone(small(3), config).states_hash;
  config.loss_scale.kind = Config::LossScaleKind::fixed;
  config.loss_scale.initial = 4096;
  const ToyResult scaled = run_alone(small(3), config);
  EXPECT_EQ(scaled.states_hash, unscaled);
  EXPECT_EQ(scaled.steps[0].loss_scale, 4096);
}

TEST_F(UpdateAlone, TheDynamicScaleFollowsTheGradients) {
  Config config = config_for(kPlacements[1]);
  config.precision.param = config.precision.reduce = DType::fp16;
  config.loss_scale.initial = 0x1p20;  // beyond fp16 for gradients near 1
  config.loss_scale.hysteresis = 1;
  config.loss_scale.growth_interval = 3;
  const ToyResult result = run_alone(small(14), config);
  std::vector<double> scales;
  for (const StepResult& step : result.steps) scales.push_back(step.loss_scale);
  const auto first_good =
      std::ranges::find_if(result.steps, [](const StepResult& step) { return step.updated; });
  ASSERT_NE(first_good, result.steps.end());
  EXPECT_GT(first_good - result.steps.begin(), 2);
  for (std::size_t i = 1; i < scales.size(); ++i) {
    if (result.steps[i - 1].skipped) {
      EXPECT_EQ(scales[i], scales[i - 1] / 2);
    }
  }
  EXPECT_EQ(*std::ranges::max_element(scales.begin() + 8, scales.end()),
            2 * *std::ranges::min_element(scales.begin() + 3, scales.end()));
}

TEST_F(UpdateAlone, AScaleAtItsMinimumIsToldInsteadOfSkippingForever) {
  Config config = config_for(kPlacements[1]);
  config.precision.param = config.precision.reduce = DType::fp16;
  config.loss_scale.initial = config.loss_scale.minimum = 0x1p20;
  config.loss_scale.hysteresis = 1;
  try {
    run_alone(small(2), config);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::numerics);
    EXPECT_THAT(error.what(), HasSubstr("loss scale is at its minimum"));
  }
}

TEST_F(UpdateAlone, GroupsHaveRatesAndBetasOfTheirOwn) {
  const Config config = config_for(kPlacements[1]);
  ToyOptions options = small(2);
  const auto hash_with = [&](const GroupRates& rates) {
    options.groups = {rates};
    return run_alone(options, config).states_hash;
  };
  const Config::Optimizer& o = config.optimizer;
  const std::string by_default = run_alone(small(2), config).states_hash;
  EXPECT_EQ(hash_with({o.learning_rate, o.weight_decay}), by_default);
  EXPECT_EQ(hash_with({o.learning_rate, o.weight_decay, o.beta1, o.beta2}), by_default);
  EXPECT_NE(hash_with({o.learning_rate, o.weight_decay, 0.5, {}}), by_default);
  EXPECT_NE(hash_with({o.learning_rate, o.weight_decay, {}, 0.5}), by_default);
  EXPECT_NE(hash_with({o.learning_rate, 0.7}), by_default);
  EXPECT_NE(hash_with({0.5, o.weight_decay}), by_default);
}

// Gradients on the host as far as it goes, the rest in files.
TEST_F(UpdateAlone, GradientsSpillOnlyBeyondTheHostBudget) {
  ToyOptions options = small(2, 2);
  options.scale_elems = 600'000;  // gradients of several slabs
  const SessionOptions scratch{.device_scratch = Bytes{256}, .host_scratch = {}, .log = {}};
  const auto plan_of = [&](const Config& config) {
    return Session::plan_memory(toy_model(options), config, 1, 1, scratch);
  };
  const auto gradients_in_files = [](const MemoryPlan& plan) {
    for (const MemoryLine& line : plan.lines) {
      if (line.tier == Tier::nvme && line.what == "grad at rest") return line.size;
    }
    return Bytes{};
  };
  Config config = config_for({"", kHost, kHost, kNvme}, 2);
  const std::string expected = run_alone(options, config).states_hash;
  config.budgets.host = plan_of(config).total(Tier::host);
  config.placement.grad = {0, 0, 0, true};
  const ToyResult whole = run_alone(options, config);
  EXPECT_EQ(gradients_in_files(whole.plan), Bytes{});
  EXPECT_EQ(whole.states_hash, expected);
  config.budgets.host -= 2_MiB;
  const ToyResult spilled = run_alone(options, config);
  EXPECT_GT(gradients_in_files(spilled.plan), Bytes{});
  EXPECT_EQ(spilled.states_hash, expected);
}

TEST_F(UpdateAlone, WeightsOfSixteenBitsAreWidenedOnceAndSaidSo) {
  const Config config = config_for(kPlacements[3]);
  TestMachine machine(1);
  std::vector<std::string> lines;
  const LogSink log = [&](LogLevel, std::string_view line) {
    if (line.find("widened") != line.npos) lines.emplace_back(line);
  };
  const Model model = toy_model(small(1));
  Session session = Session::open(model, config, backends_on(machine, Rank{0}, config),
                                  {.device_scratch = {}, .host_scratch = {}, .log = log});
  const auto value_of = [](const TensorSlice& slice, std::size_t i) {
    return static_cast<float>((slice.offset_elems + i) % 251) / 64;  // exact in bf16
  };
  for (std::uint32_t u = 0; u < model.units().size(); ++u) {
    session.initialize(UnitId{u}, DType::bf16,
                       [&](const TensorSlice& slice, std::span<std::byte> values) {
                         std::vector<float> wide(slice.count_elems);
                         for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = value_of(slice, i);
                         ASSERT_EQ(values.size(), 2 * wide.size());
                         convert(values.data(), DType::bf16, wide.data(), DType::fp32, wide.size());
                       });
    for (const char* kind : {"param", "master"}) {
      session.read(UnitId{u}, kind, [&](const TensorSlice& slice, std::span<const float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], value_of(slice, i)) << kind << " " << i;
        }
      });
    }
  }
  EXPECT_THAT(lines, testing::ElementsAre("weights of bf16 are widened to the fp32 master once"));
}

TEST_F(UpdateAlone, RatesThatWouldSpoilTheWeightsAreRefused) {
  const Config config = config_for(kPlacements[1]);
  for (const GroupRates& rates :
       {GroupRates{std::nan(""), 0}, GroupRates{0.1, -1}, GroupRates{0.1, 0, 1.0, {}},
        GroupRates{0.1, 0, {}, std::nan("")}}) {
    ToyOptions options = small(1);
    options.groups = {rates};
    try {
      run_alone(options, config);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("for group 0"));
    }
  }
}

TEST_F(UpdateAlone, ALossScaleThatNobodyAsksForIsAnError) {
  Config config = config_for(kPlacements[1]);
  config.loss_scale.kind = Config::LossScaleKind::fixed;
  TestMachine machine(1);
  const Model model = toy_model(small(1));
  Session session = Session::open(model, config, backends_on(machine, Rank{0}, config));
  for (std::uint32_t u = 0; u < model.units().size(); ++u) {
    session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float>) {});
  }
  const StreamId stream = session.device().create_stream("compute");
  for (const bool asks : {true, false}) {
    Step step = session.begin_step({});
    if (asks) {
      EXPECT_EQ(session.loss_scale(), 65536);
    }
    GradientLease gradients = session.gradients(UnitId{0}, stream);
    try {
      session.reduce(std::move(gradients), stream);
      EXPECT_TRUE(asks) << "no error";
      EXPECT_EQ(step.end().loss_scale, 65536);
    } catch (const Error& error) {
      EXPECT_FALSE(asks);
      EXPECT_THAT(error.what(), HasSubstr("multiply the loss by loss_scale()"));
    }
  }
}

// A gather's copy may run as late as it likes: an update must not overtake it.
TEST_F(UpdateAlone, ALeaseThatIsHeldOverTheEndShowsTheWeightsOfItsStep) {
  for (const Placed& placed : kPlacements) {
    SCOPED_TRACE(placed.name);
    const Config config = config_for(placed);
    TestMachine machine(1);
    const Model model = toy_model(small(1));
    Session session = Session::open(model, config, backends_on(machine, Rank{0}, config));
    for (std::uint32_t u = 0; u < model.units().size(); ++u) {
      session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
        std::ranges::fill(values, 1.0F);
      });
    }
    const StreamId stream = session.device().create_stream("compute");
    const StreamId later = session.device().create_stream("later");
    Pinned image(session.device(), std::vector<std::byte>(2 * 3));
    Step step = session.begin_step({.groups = {{.learning_rate = 0.5, .weight_decay = 0.5}}});
    {
      GradientLease gradients = session.gradients(UnitId{3}, stream);
      const GradientView view = gradients[TensorId{0}];  // zeros, but present: decay moves weights
      EXPECT_EQ(view.count_elems, 3U);
      session.reduce(std::move(gradients), stream);
    }
    const GatherLease lease = session.gather(UnitId{3}, later);
    EXPECT_TRUE(step.end().updated);
    session.device().copy(later, image.data(), lease[TensorId{0}].data, Bytes{6},
                          CopyKind::device_to_host);
    session.device().synchronize(session.device().record(later));
    float value = 0;
    convert(&value, DType::fp32, image.data(), DType::bf16, 1);
    EXPECT_EQ(value, 1.0F);
    session.read(UnitId{3}, "param", [](const TensorSlice&, std::span<const float> values) {
      EXPECT_EQ(values[0], 0.75F);
    });
  }
}

TEST_F(UpdateAlone, ThePrecisionIsSaidInOneLine) {
  Config config = config_for(kPlacements[1], 2);
  config.precision.param = config.precision.reduce = DType::fp16;
  config.precision.moments = DType::bf16;
  std::string text;
  run_alone(small(1, 2), config, [&](Session& session) { text = session.precision_text(); });
  EXPECT_EQ(text,
            "precision: parameters fp16, gradients fp16 on the wire and fp32 at rest, masters "
            "fp32, moments bf16; adamw; loss scale dynamic, from 65536");
}

}  // namespace
}  // namespace strata::test
