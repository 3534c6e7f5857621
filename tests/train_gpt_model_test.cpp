// The math of examples/train_gpt against PyTorch (tests/tools/make_gpt_golden.py) and against the
// double-precision reference, which is itself checked by finite differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "strata/element_ops.hpp"
#include "strata/error.hpp"
#include "support/local_gpt.hpp"
#include "support/reference_trainer.hpp"
#include "train_gpt/fast_math.hpp"
#include "train_gpt/init.hpp"
#include "train_gpt/model.hpp"

namespace strata::testing {
namespace {

using train_gpt::GptConfig;

// The largest difference, relative to the largest right value.
template <class Got, class Want>
double relative_error(const Got& got, const Want& want) {
  double worst = 0;
  double largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(double{got[i]} - double{want[i]});
    worst = std::max(worst, std::isnan(difference) ? HUGE_VAL : difference);
    largest = std::max(largest, std::abs(double{want[i]}));
  }
  EXPECT_EQ(got.size(), want.size());
  EXPECT_GT(largest, 0) << "the right value is zero everywhere: nothing was tested";
  return worst / largest;
}

// What make_gpt_golden.py wrote.
class Golden {
 public:
  Golden() {
    const std::string directory = STRATA_TEST_DATA_DIR "/gpt_golden/";
    std::ifstream text(directory + "golden.json");
    json_ = nlohmann::json::parse(text);
    std::ifstream binary(directory + "golden.bin", std::ios::binary | std::ios::ate);
    values_.resize(static_cast<std::size_t>(binary.tellg()) / sizeof(float));
    binary.seekg(0);
    binary.read(reinterpret_cast<char*>(values_.data()),
                static_cast<std::streamsize>(values_.size() * sizeof(float)));
    inputs = json_["inputs"].get<std::vector<std::uint32_t>>();
    targets = json_["targets"].get<std::vector<std::uint32_t>>();
  }

  GptConfig config(bool tied) const {
    const auto& c = json_["config"];
    return {.layers = c["layers"],
            .hidden = c["hidden"],
            .heads = c["heads"],
            .kv_heads = c["kv_heads"],
            .ffn = c["ffn"],
            .vocab = c["vocab"],
            .sequence = c["sequence"],
            .tied_embeddings = tied,
            .rope_theta = c["rope_theta"],
            .norm_eps = c["norm_eps"]};
  }

  std::uint64_t batch() const { return json_["batch"]; }
  double loss(bool tied) const { return variant(tied)["loss"]; }
  std::span<const float> gradient(bool tied, const std::string& name) const {
    return place(variant(tied)["gradients"].at(name));
  }
  std::size_t count_gradients(bool tied) const { return variant(tied)["gradients"].size(); }

  auto fill() const {
    return [this](const std::string& unit, const std::string& tensor, std::span<float> out) {
      const std::span<const float> values = place(json_["weights"].at(unit + "/" + tensor));
      ASSERT_EQ(values.size(), out.size());
      std::copy(values.begin(), values.end(), out.begin());
    };
  }

  std::vector<std::uint32_t> inputs;
  std::vector<std::uint32_t> targets;

 private:
  const nlohmann::json& variant(bool tied) const { return json_[tied ? "tied" : "untied"]; }
  std::span<const float> place(const nlohmann::json& where) const {
    return std::span(values_).subspan(where["offset"], where["count"]);
  }

  nlohmann::json json_;
  std::vector<float> values_;
};

// Weights large enough that every part of the model has a gradient worth comparing.
void fill_lively(const std::string& unit, const std::string& tensor, std::span<float> out) {
  std::mt19937_64 random(std::hash<std::string>{}(unit + "/" + tensor));
  const bool norm = tensor.ends_with("norm");
  std::normal_distribution<float> normal(norm ? 1.0F : 0.0F, norm ? 0.2F : 0.15F);
  for (float& value : out) value = normal(random);
}

struct Batch {
  std::vector<std::uint32_t> inputs;
  std::vector<std::uint32_t> targets;
};

Batch random_batch(const GptConfig& config, std::uint64_t rows, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::uint32_t> token(0, config.vocab - 1);
  Batch batch;
  for (std::uint64_t i = 0; i < rows * config.sequence; ++i) {
    batch.inputs.push_back(token(random));
    batch.targets.push_back(token(random));
  }
  return batch;
}

GptConfig odd_config() {
  return {
      .layers = 2, .hidden = 24, .heads = 6, .kv_heads = 3, .ffn = 40, .vocab = 37, .sequence = 11};
}

class Tied : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Embeddings, Tied, ::testing::Bool(), [](const auto& embeddings) {
  return embeddings.param ? "tied" : "untied";
});

TEST_P(Tied, MatchesPyTorch) {
  const Golden golden;
  LocalGpt model(golden.config(GetParam()), golden.batch(), {}, golden.fill());
  EXPECT_NEAR(model.loss(golden.inputs, golden.targets) / golden.loss(GetParam()), 1, 2e-6);
  const double loss = model.accumulate(golden.inputs, golden.targets);
  EXPECT_NEAR(loss / golden.loss(GetParam()), 1, 2e-6);
  EXPECT_EQ(model.names().size(), golden.count_gradients(GetParam()));
  for (const std::string& name : model.names()) {
    EXPECT_LT(relative_error(model.gradient(name), golden.gradient(GetParam(), name)), 5e-6)
        << name;
  }
}

TEST_P(Tied, ReferenceMatchesPyTorch) {
  const Golden golden;
  const GptConfig config = golden.config(GetParam());
  ReferenceTrainer reference(config, {}, golden.fill());
  const double loss = reference.accumulate(golden.inputs, golden.targets);
  EXPECT_NEAR(loss / golden.loss(GetParam()), 1, 1e-9);
  for (const UnitSpec& unit : train_gpt::units(config)) {
    for (const TensorSpec& tensor : unit.tensors) {
      const std::string name = unit.name + "/" + tensor.name;
      // The golden values are rounded to fp32: 2^-24 of the value.
      EXPECT_LT(relative_error(reference.gradient(name), golden.gradient(GetParam(), name)), 7e-8)
          << name;
    }
  }
}

TEST_P(Tied, ReferenceMatchesFiniteDifferences) {
  GptConfig config = odd_config();
  config.tied_embeddings = GetParam();
  const Batch batch = random_batch(config, 2, 3);
  ReferenceTrainer reference(config, {}, fill_lively);
  reference.accumulate(batch.inputs, batch.targets);
  std::mt19937_64 random(11);
  for (const UnitSpec& unit : train_gpt::units(config)) {
    for (const TensorSpec& tensor : unit.tensors) {
      const std::string name = unit.name + "/" + tensor.name;
      for (int draw = 0; draw < 3; ++draw) {
        const std::uint64_t index = random() % reference.weight(name).size();
        const double value = reference.weight(name)[index];
        constexpr double kStep = 1e-5;
        reference.set_weight(name, index, value + kStep);
        const double above = reference.loss(batch.inputs, batch.targets);
        reference.set_weight(name, index, value - kStep);
        const double below = reference.loss(batch.inputs, batch.targets);
        reference.set_weight(name, index, value);
        EXPECT_NEAR((above - below) / (2 * kStep), reference.gradient(name)[index], 2e-6)
            << name << " element " << index;
      }
    }
  }
}

void expect_matches_reference(const GptConfig& config, std::uint64_t rows, LocalGpt::Dtypes dtypes,
                              double gradient_tolerance) {
  const Batch batch = random_batch(config, rows, 5);
  LocalGpt model(config, rows, dtypes, fill_lively);
  ReferenceTrainer reference(config, {.param_dtype = dtypes.weights}, fill_lively);
  const double loss = model.accumulate(batch.inputs, batch.targets);
  const double right = reference.accumulate(batch.inputs, batch.targets);
  EXPECT_NEAR(loss / right, 1, 3e-6);
  for (const std::string& name : model.names()) {
    EXPECT_LT(relative_error(model.gradient(name), reference.gradient(name)), gradient_tolerance)
        << name;
  }
  EXPECT_TRUE(model.guard_is_intact());
}

TEST(TrainGptModel, MatchesReferenceAcrossQueryBlocks) {
  GptConfig config = odd_config();
  config.sequence = 150;  // two whole blocks of 64 queries and a part
  expect_matches_reference(config, 2, {}, 2e-5);
}

TEST(TrainGptModel, MatchesReferenceForEveryHeadGrouping) {
  for (const std::uint32_t kv_heads : {1U, 2U, 3U, 6U}) {
    GptConfig config = odd_config();
    config.kv_heads = kv_heads;
    SCOPED_TRACE(kv_heads);
    expect_matches_reference(config, 3, {}, 1e-5);
  }
}

TEST(TrainGptModel, MatchesReferenceWhenLogitsComeInSlabs) {
  GptConfig config{.layers = 1,
                   .hidden = 64,
                   .heads = 2,
                   .kv_heads = 1,
                   .ffn = 16,
                   .vocab = 40000,
                   .sequence = 4};
  ASSERT_LT(train_gpt::kernels::slab_rows(config.vocab, config.hidden), config.vocab / 2);
  expect_matches_reference(config, 2, {}, 1e-5);
  config.tied_embeddings = false;
  expect_matches_reference(config, 1, {DType::bf16, DType::fp32}, 1e-5);
}

TEST(TrainGptModel, MatchesReferenceWhenABlockComesInSlabs) {
  const GptConfig config{.layers = 1,
                         .hidden = 256,
                         .heads = 2,
                         .kv_heads = 2,
                         .ffn = 5000,
                         .vocab = 16,
                         .sequence = 3};
  ASSERT_LT(train_gpt::kernels::slab_rows(config.ffn, config.hidden), config.ffn);
  ASSERT_LT(train_gpt::kernels::slab_rows(config.hidden, config.ffn), config.hidden);
  expect_matches_reference(config, 1, {DType::bf16, DType::fp32}, 2e-5);
}

TEST(TrainGptModel, MatchesReferenceWithOneTokenSequences) {
  GptConfig config = odd_config();
  config.sequence = 1;
  // One key: its probability is 1 whatever the query is, so queries and keys have no gradient.
  const Batch batch = random_batch(config, 3, 5);
  LocalGpt model(config, 3, {}, fill_lively);
  ReferenceTrainer reference(config, {}, fill_lively);
  EXPECT_NEAR(model.accumulate(batch.inputs, batch.targets),
              reference.accumulate(batch.inputs, batch.targets), 1e-4);
  EXPECT_THAT(model.gradient("block.0/wq"), ::testing::Each(::testing::FloatNear(0, 1e-6F)));
  EXPECT_LT(relative_error(model.gradient("block.0/wv"), reference.gradient("block.0/wv")), 1e-5);
}

TEST(TrainGptModel, NarrowWeightsAreWidenedExactly) {
  expect_matches_reference(odd_config(), 2, {DType::bf16, DType::fp32}, 1e-5);
  expect_matches_reference(odd_config(), 2, {DType::fp16, DType::fp32}, 1e-5);
}

// A gradient that is added once to a zeroed buffer is the fp32 gradient, rounded.
TEST(TrainGptModel, NarrowGradientsRoundOnce) {
  GptConfig config = odd_config();
  config.tied_embeddings = false;
  const Batch batch = random_batch(config, 2, 9);
  LocalGpt wide(config, 2, {DType::bf16, DType::fp32}, fill_lively);
  LocalGpt narrow(config, 2, {DType::bf16, DType::bf16}, fill_lively);
  wide.accumulate(batch.inputs, batch.targets);
  narrow.accumulate(batch.inputs, batch.targets);
  for (const std::string& name : wide.names()) {
    const std::vector<float> values = wide.gradient(name);
    std::vector<std::byte> rounded(values.size() * 2);
    convert(rounded.data(), DType::bf16, values.data(), DType::fp32, values.size());
    EXPECT_THAT(narrow.gradient_bytes(name), ::testing::ElementsAreArray(rounded)) << name;
  }
}

TEST(TrainGptModel, GradientsAddUp) {
  const GptConfig config = odd_config();
  const Batch first = random_batch(config, 2, 1);
  const Batch second = random_batch(config, 2, 2);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    LocalGpt model(config, 2, {DType::fp32, dtype}, fill_lively);
    ReferenceTrainer reference(config, {}, fill_lively);
    for (const Batch& batch : {first, second}) {
      model.accumulate(batch.inputs, batch.targets, 0.25F);
      reference.accumulate(batch.inputs, batch.targets);
    }
    for (const std::string& name : model.names()) {
      std::vector<double> right = reference.gradient(name);
      for (double& value : right) value *= 0.25;
      // A bf16 sum of up to four roundings, each at most 2^-9 of the value then.
      const double tolerance = dtype == DType::fp32 ? 1e-5 : 6 * 0x1p-9;
      EXPECT_LT(relative_error(model.gradient(name), right), tolerance) << name;
    }
  }
}

TEST(TrainGptModel, FrozenTensorsKeepNoGradientAndChangeNoOther) {
  const GptConfig config = odd_config();
  const Batch batch = random_batch(config, 2, 4);
  LocalGpt all(config, 2, {}, fill_lively);
  LocalGpt some(config, 2, {}, fill_lively);
  const std::vector<std::string> frozen = {"block.0/wq", "block.1/ffn_norm", "block.1/w_down",
                                           "head/final_norm", "embed/embedding"};
  for (const std::string& name : frozen) some.freeze(name);
  all.accumulate(batch.inputs, batch.targets);
  some.accumulate(batch.inputs, batch.targets);
  for (const std::string& name : all.names()) {
    if (std::find(frozen.begin(), frozen.end(), name) != frozen.end()) {
      EXPECT_THAT(some.gradient(name), ::testing::Each(0.0F)) << name;
    } else {
      EXPECT_EQ(some.gradient(name), all.gradient(name)) << name;
    }
  }
}

// What other units left in the workspace must not matter, nor how often a model ran before.
TEST(TrainGptModel, SameBitsWhateverTheWorkspaceHeld) {
  GptConfig config = odd_config();
  config.sequence = 70;
  const Batch batch = random_batch(config, 2, 6);
  LocalGpt model(config, 2, {DType::bf16, DType::bf16}, fill_lively);
  const double loss = model.accumulate(batch.inputs, batch.targets);
  std::map<std::string, std::vector<float>> gradients;
  for (const std::string& name : model.names()) gradients[name] = model.gradient(name);
  for (const std::byte garbage : {std::byte{0x00}, std::byte{0xFF}, std::byte{0x7F}}) {
    model.zero_gradients();
    std::ranges::fill(model.workspace_memory(), garbage);  // 0xFF: every float is NaN
    EXPECT_EQ(model.accumulate(batch.inputs, batch.targets), loss);
    for (const std::string& name : model.names()) {
      EXPECT_EQ(model.gradient(name), gradients[name]) << name;
    }
  }
}

TEST(TrainGptModel, LossAndBackwardReturnTheSameLoss) {
  const GptConfig config = odd_config();
  const Batch batch = random_batch(config, 2, 8);
  LocalGpt model(config, 2, {}, fill_lively);
  EXPECT_EQ(model.loss(batch.inputs, batch.targets),
            model.accumulate(batch.inputs, batch.targets, 0.125F));
}

TEST(TrainGptModel, NonFiniteWeightsShowInTheLoss) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto fill = [&](const std::string& unit, const std::string& tensor,
                          std::span<float> out) {
      fill_lively(unit, tensor, out);
      if (unit == "block.0" && tensor == "w_up") out[5] = bad;
    };
    LocalGpt model(odd_config(), 1, {}, fill);
    const Batch batch = random_batch(odd_config(), 1, 8);
    EXPECT_FALSE(std::isfinite(model.accumulate(batch.inputs, batch.targets)));
    EXPECT_THAT(model.gradient("block.0/wq"), ::testing::Contains(::testing::IsNan()));
  }
}

// Whole training runs: forward, backward and AdamW of both sides.
TEST(TrainGptModel, TrainsAsTheReferenceDoes) {
  const GptConfig config = odd_config();
  const auto fill = [&](const std::string& unit, const std::string& tensor, std::span<float> out) {
    train_gpt::fill_initial(config, 1, unit, tensor, 0, out);
  };
  constexpr int kSteps = 30;
  constexpr double kRate = 3e-3;
  constexpr double kDecay = 0.1;
  const Batch batch = random_batch(config, 4, 21);
  const double tokens = static_cast<double>(batch.inputs.size());
  LocalGpt model(config, 4, {}, fill);
  ReferenceTrainer reference(config, {.weight_decay = kDecay}, fill);
  double first = 0;
  double last = 0;
  for (int step = 0; step < kSteps; ++step) {
    last = model.accumulate(batch.inputs, batch.targets) / tokens;
    const double right = reference.accumulate(batch.inputs, batch.targets) / tokens;
    ASSERT_NEAR(last, right, 2e-5) << "step " << step;
    if (step == 0) first = last;
    model.apply(static_cast<float>(1 / tokens), kRate, kDecay);
    reference.apply(1 / tokens, kRate);
  }
  EXPECT_NEAR(first, std::log(config.vocab), 0.05);
  EXPECT_LT(last, first - 0.5);
}

TEST(ReferenceTrainer, ClipsToTheNorm) {
  const GptConfig config = odd_config();
  const Batch batch = random_batch(config, 1, 2);
  ReferenceTrainer plain(config, {}, fill_lively);
  ReferenceTrainer clipped(config, {.epsilon = 1, .clip_norm = 0.5}, fill_lively);
  plain.accumulate(batch.inputs, batch.targets);
  clipped.accumulate(batch.inputs, batch.targets);
  double squares = 0;
  for (const UnitSpec& unit : train_gpt::units(config)) {
    for (const TensorSpec& tensor : unit.tensors) {
      for (const double g : plain.gradient(unit.name + "/" + tensor.name)) squares += g * g;
    }
  }
  const double g = clipped.gradient("block.1/wo")[7];
  const double before = clipped.weight("block.1/wo")[7];
  const double norm = clipped.apply(1, 0.1);
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-9 * norm);
  // The first step's bias-corrected moments are g and |g|.
  const double c = g * 0.5 / norm;
  EXPECT_NEAR(clipped.weight("block.1/wo")[7], before - 0.1 * c / (std::abs(c) + 1), 1e-12);
}

TEST(FastMath, ExpIsAccurate) {
  double worst = 0;
  for (float x = -87; x < 88; x += 0.00371F) {
    const double right = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(train_gpt::fast_exp(x) - right) / right);
  }
  EXPECT_LT(worst, 0x1p-22);  // 2 ulp
  EXPECT_EQ(train_gpt::fast_exp(0), 1);
  EXPECT_LT(train_gpt::fast_exp(-1e30F), 2e-38F);
  EXPECT_TRUE(std::isnan(train_gpt::fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(FastMath, RowMaximumFindsEveryPlace) {
  for (std::uint64_t count = 1; count < 70; ++count) {
    for (std::uint64_t place = 0; place < count; ++place) {
      std::vector<float> row(count, -3.0F);
      row[place] = -1;
      EXPECT_EQ(train_gpt::row_maximum(row.data(), count), -1) << count << " " << place;
    }
  }
}

TEST(CrossEntropy, LargeLogitsNeitherOverflowNorVanish) {
  std::vector<float> logits = {1e4F, 1e4F, -1e4F, -1e4F, -1e4F, -1e4F};
  const std::vector<std::uint32_t> targets = {0, 2};
  float maximum[2];
  double sum[2];
  float target[2];
  const train_gpt::kernels::SoftmaxState state{maximum, sum, target};
  const train_gpt::kernels::LogitSlab slab{logits.data(), 0, 3};
  train_gpt::kernels::cross_entropy_begin(2, state);
  train_gpt::kernels::cross_entropy_visit(targets, slab, state);
  EXPECT_NEAR(train_gpt::kernels::cross_entropy_total(2, state), std::log(2.0) + std::log(3.0),
              1e-6);
  train_gpt::kernels::cross_entropy_backward(targets, slab, state, 1);
  EXPECT_THAT(logits, ::testing::Pointwise(::testing::FloatNear(1e-6F),
                                           {-0.5F, 0.5F, 0.0F, 1 / 3.0F, 1 / 3.0F, -2 / 3.0F}));
}

TEST(Workspace, SizeIsAsDocumented) {
  const GptConfig config = train_gpt::preset("quick");
  EXPECT_EQ(train_gpt::activation_bytes(config, 2), Bytes{2 * 128 * 768 * 4});
  EXPECT_EQ(train_gpt::checkpoint_bytes(config, 2), Bytes{11 * 2 * 128 * 768 * 4});
  const auto bytes = [&](std::uint64_t batch) {
    return train_gpt::workspace_bytes(config, batch).value;
  };
  const std::uint64_t per_row = 128 * 4 * (4 * 768 + 2 * 384 + 3 * 2048);
  EXPECT_EQ(bytes(3) - bytes(2), per_row);
  // Besides, a slab (at most 4 MiB), two blocks of scores, the rotary table and two norms.
  EXPECT_EQ(bytes(2) - 2 * per_row, 4 * (1024 * 768 + 2 * 64 * 128 + 2 * 128 * 32 + 2 * 768));
}

TEST(ModelConfig, PresetsHaveTheirSizes) {
  EXPECT_EQ(train_gpt::parameter_count(train_gpt::preset("tiny")), 820352U);
  const auto millions = [](std::string_view name) {
    return static_cast<double>(train_gpt::parameter_count(train_gpt::preset(name))) / 1e6;
  };
  EXPECT_NEAR(millions("small"), 9.5, 0.5);
  EXPECT_NEAR(millions("quick"), 65.1, 0.1);
  EXPECT_NEAR(millions("gpt-124m"), 124, 1);
  EXPECT_NEAR(millions("gpt-1.5b"), 1560, 5);
  for (const std::string_view name : train_gpt::preset_names()) {
    EXPECT_NO_THROW(train_gpt::validate(train_gpt::preset(name))) << name;
  }
}

TEST(ModelConfig, FlopsFollowFromTheParameters) {
  GptConfig config = train_gpt::preset("gpt-124m");
  const double parameters = static_cast<double>(train_gpt::parameter_count(config));
  config.sequence = 1;  // attention is negligible: 2P, 6P and nearly 8P remain
  const auto flops = [&](train_gpt::Pass pass) { return train_gpt::flops_per_token(config, pass); };
  EXPECT_NEAR(flops(train_gpt::Pass::forward) / parameters, 2, 0.01);
  EXPECT_NEAR(flops(train_gpt::Pass::train) / parameters, 6, 0.01);
  const double head = 50257.0 * 768;
  EXPECT_NEAR(flops(train_gpt::Pass::train_with_recompute) / (8 * parameters - 2 * head), 1, 0.01);
}

TEST(ModelConfig, RefusesWhatCannotBe) {
  const auto message = [](auto change) -> std::string {
    GptConfig config = odd_config();
    change(config);
    try {
      train_gpt::validate(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::config);
      return error.what();
    }
    return "accepted";
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(message([](GptConfig&) {}), "accepted");
  EXPECT_THAT(message([](GptConfig& c) { c.layers = 0; }), HasSubstr("layers"));
  EXPECT_THAT(message([](GptConfig& c) { c.heads = 0; }), HasSubstr("heads"));
  EXPECT_THAT(message([](GptConfig& c) { c.hidden = 25; }), HasSubstr("hidden (25)"));
  EXPECT_THAT(message([](GptConfig& c) { c.hidden = 30; }), HasSubstr("even"));
  EXPECT_THAT(message([](GptConfig& c) { c.kv_heads = 4; }), HasSubstr("kv_heads (4)"));
  EXPECT_THAT(message([](GptConfig& c) { c.kv_heads = 0; }), HasSubstr("kv_heads"));
  EXPECT_THAT(message([](GptConfig& c) { c.ffn = 0; }), HasSubstr("ffn"));
  EXPECT_THAT(message([](GptConfig& c) { c.vocab = 1; }), HasSubstr("vocab"));
  EXPECT_THAT(message([](GptConfig& c) { c.sequence = 0; }), HasSubstr("sequence"));
}

TEST(ModelConfig, AnUnknownPresetListsTheKnownOnes) {
  try {
    train_gpt::preset("huge");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("tiny, small, quick, gpt-124m, gpt-1.5b"));
  }
}

std::vector<float> initial(const GptConfig& config, std::uint64_t seed, const std::string& unit,
                           const std::string& tensor, std::uint64_t offset, std::uint64_t count) {
  std::vector<float> values(count);
  train_gpt::fill_initial(config, seed, unit, tensor, offset, values);
  return values;
}

TEST(Init, SlicesAreParts) {
  const GptConfig config = train_gpt::preset("tiny");
  const std::vector<float> whole = initial(config, 4, "block.1", "wq", 0, 1000);
  for (std::uint64_t offset : {0, 1, 2, 7, 500, 999}) {
    for (std::uint64_t count : {0, 1, 2, 3, 64}) {
      if (offset + count > whole.size()) continue;
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(offset);
      EXPECT_THAT(initial(config, 4, "block.1", "wq", offset, count),
                  ::testing::ElementsAreArray(begin, begin + static_cast<std::ptrdiff_t>(count)))
          << offset << " " << count;
    }
  }
}

TEST(Init, HasTheStatedMoments) {
  const GptConfig config = train_gpt::preset("tiny");
  const auto moments = [&](const std::string& tensor, double deviation) {
    const std::vector<float> values = initial(config, 1, "block.0", tensor, 0, 200000);
    double sums[4] = {};
    for (const float value : values) {
      const double z = value / deviation;
      for (int power = 0; power < 4; ++power) sums[power] += std::pow(z, power + 1);
    }
    // Within five standard errors of a standard normal's moments.
    EXPECT_NEAR(sums[0] / 200000, 0, 5 * std::sqrt(1 / 200000.0)) << tensor;
    EXPECT_NEAR(sums[1] / 200000, 1, 5 * std::sqrt(2 / 200000.0)) << tensor;
    EXPECT_NEAR(sums[2] / 200000, 0, 5 * std::sqrt(15 / 200000.0)) << tensor;
    EXPECT_NEAR(sums[3] / 200000, 3, 5 * std::sqrt(96 / 200000.0)) << tensor;
  };
  moments("wq", 0.02);
  moments("w_up", 0.02);
  moments("wo", 0.02 / std::sqrt(8.0));
  moments("w_down", 0.02 / std::sqrt(8.0));
  EXPECT_THAT(initial(config, 1, "block.0", "attn_norm", 3, 9), ::testing::Each(1.0F));
  EXPECT_THAT(initial(config, 1, "head", "final_norm", 0, 9), ::testing::Each(1.0F));
}

TEST(Init, EveryTensorAndSeedDiffers) {
  const GptConfig config = train_gpt::preset("tiny");
  const std::vector<float> one = initial(config, 1, "block.0", "wq", 0, 16);
  EXPECT_EQ(one, initial(config, 1, "block.0", "wq", 0, 16));
  EXPECT_NE(one, initial(config, 2, "block.0", "wq", 0, 16));
  EXPECT_NE(one, initial(config, 1, "block.1", "wq", 0, 16));
  EXPECT_NE(one, initial(config, 1, "block.0", "wk", 0, 16));
}

}  // namespace
}  // namespace strata::testing
