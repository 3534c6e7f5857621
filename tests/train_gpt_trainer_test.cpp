// The example's trainer on whole sessions in one process: its losses, gradient norms and weights
// against the double-precision reference, and its device work on machines that run it late and
// out of order and check every access that they are told.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "cpu/cpu_device.hpp"
#include "support/in_process_ranks.hpp"
#include "support/reference_trainer.hpp"
#include "support/simulated_disk.hpp"
#include "support/test_machine.hpp"
#include "train_gpt/init.hpp"
#include "train_gpt/trainer.hpp"

namespace train_gpt {
namespace {

using strata::Backends;
using strata::Bytes;
using strata::Communicator;
using strata::Config;
using strata::DType;
using strata::Rank;
using strata::Session;
using strata::Tier;
using strata::test::InProcessWorld;
using strata::test::SimulatedDisk;
using strata::test::TestMachine;
using namespace strata::literals;

constexpr std::uint64_t kSteps = 3;
constexpr double kLearningRate = 0.01;
constexpr double kWeightDecay = 0.1;

TrainerOptions small_options(bool tied) {
  return {.model = {.layers = 2,
                    .hidden = 32,
                    .heads = 4,
                    .kv_heads = 2,
                    .ffn = 48,
                    .vocab = 64,
                    .sequence = 16,
                    .tied_embeddings = tied},
          .batch = 2,
          .accumulation = 2,
          .eval_batches = 3,
          .seed = 5};
}

Config small_config(const strata::TierFractions& placement, DType dtype) {
  Config config;
  config.budgets = {.device = 8_MiB, .host = 64_MiB, .nvme = 64_MiB};
  config.placement = {placement, placement, placement, placement};
  config.nvme.directories = {"/nvme"};
  config.precision = {dtype, dtype};
  config.optimizer.clip_norm = 1;
  config.engine.max_micro_batches = 2;
  config.engine.tile = 256_KiB;
  return config;
}

// A file of 1500 tokens below 64, which is long enough for an evaluation part.
class DataFile {
 public:
  DataFile() : path_(fmt::format("{}trainer_test_tokens_{}", testing::TempDir(), ::getpid())) {
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    for (unsigned i = 0; i < 1500; ++i) file.put(static_cast<char>((i * i + 3 * i) % 61));
  }
  Dataset open(const GptConfig& model) const {
    return Dataset(path_, TokenFormat::bytes, model.vocab, model.sequence);
  }

 private:
  std::string path_;
};

struct Result {
  std::vector<double> losses;  // per step, summed over the ranks
  std::vector<double> norms;
  double eval_loss = 0;  // after the steps, summed over the ranks
  std::string hash;
};

Result train_rank(Session& session, Dataset& data, const TrainerOptions& options) {
  Result result;
  Trainer trainer(session, data, options);
  for (const Tier tier : {Tier::device, Tier::host}) {
    EXPECT_EQ(session.usage(tier).reserved, session.memory_plan().total(tier)) << name_of(tier);
  }
  trainer.initialize_weights();
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const Trainer::StepReport report =
        trainer.step(step, {{kLearningRate, kWeightDecay}, {kLearningRate, 0}});
    EXPECT_TRUE(report.result.updated);
    result.losses.push_back(report.loss_sum);
    result.norms.push_back(report.result.grad_norm);
  }
  result.hash = session.weights_hash(true);
  result.eval_loss = trainer.evaluate();
  EXPECT_EQ(session.weights_hash(true), result.hash) << "evaluation changed a state";
  return result;
}

template <class BackendsOf>
Result train(TrainerOptions options, const Config& config, std::uint32_t ranks, std::uint64_t seed,
             BackendsOf&& backends_of, const std::function<void(Session&)>& inspect) {
  const DataFile file;
  std::vector<Result> results(ranks);
  strata::test::run_ranks(ranks, [&](Rank rank, Communicator&) {
    Dataset data = file.open(options.model);
    Backends backends = backends_of(rank);
    backends.block_io = std::make_unique<SimulatedDisk>(
        SimulatedDisk::Options{.seed = seed, .delivery = SimulatedDisk::Delivery::background});
    TrainerOptions own = options;
    own.copies_to_host = !backends.device->host_addressable();
    Session session = Session::open(make_model(options.model), config, std::move(backends),
                                    Trainer::session_options(own));
    results[rank.value] = train_rank(session, data, own);
    inspect(session);
  });
  Result all = results[0];
  for (std::uint32_t r = 1; r < ranks; ++r) {
    EXPECT_EQ(results[r].hash, all.hash);
    EXPECT_EQ(results[r].norms, all.norms);
    for (std::uint64_t s = 0; s < kSteps; ++s) all.losses[s] += results[r].losses[s];
    all.eval_loss += results[r].eval_loss;
  }
  return all;
}

Result train_on_cpu(const TrainerOptions& options, const Config& config, std::uint32_t ranks) {
  InProcessWorld world(ranks);
  const auto backends_of = [&](Rank rank) {
    Backends backends;
    backends.communicator = world.communicator(rank);
    backends.device = std::make_unique<strata::CpuDevice>(
        strata::CpuDevice::Options{.arena = config.budgets.device});
    return backends;
  };
  return train(options, config, ranks, 0, backends_of, [](Session&) {});
}

Result train_on_machine(const TrainerOptions& options, const Config& config, std::uint32_t ranks,
                        std::uint64_t seed) {
  TestMachine machine(ranks, seed);
  return train(
      options, config, ranks, seed, [&](Rank rank) { return machine.backends(rank, config); },
      [&](Session& session) { machine.inspect(session); });
}

// Calls `visit(inputs, targets)` for the batches of one step or evaluation.
template <class Visit>
void for_each_batch(const TrainerOptions& options, Dataset& data, Split split, std::uint64_t step,
                    std::uint32_t ranks, Visit&& visit) {
  std::vector<std::uint32_t> inputs(options.tokens_of_micro_batch());
  std::vector<std::uint32_t> targets(inputs.size());
  const std::uint32_t count = split == Split::train ? options.accumulation : options.eval_batches;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::uint32_t m = 0; m < count; ++m) {
      data.read_batch(options.seed, split, BatchId{step, m, rank}, inputs, targets);
      visit(inputs, targets);
    }
  }
}

Result train_reference(const TrainerOptions& options, const Config& config, std::uint32_t ranks) {
  const DataFile file;
  Dataset data = file.open(options.model);
  strata::testing::ReferenceTrainer reference(
      options.model,
      {.beta1 = config.optimizer.beta1,
       .beta2 = config.optimizer.beta2,
       .epsilon = config.optimizer.epsilon,
       .weight_decay = kWeightDecay,
       .clip_norm = config.optimizer.clip_norm},
      [&](const std::string& unit, const std::string& tensor, std::span<float> values) {
        fill_initial(options.model, options.seed, unit, tensor, 0, values);
      });
  const auto tokens =
      static_cast<double>(options.tokens_of_micro_batch() * options.accumulation * ranks);
  Result result;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    double loss = 0;
    for_each_batch(options, data, Split::train, step, ranks, [&](auto& inputs, auto& targets) {
      loss += reference.accumulate(inputs, targets);
    });
    result.losses.push_back(loss);
    result.norms.push_back(reference.apply(1 / tokens, kLearningRate));
  }
  for_each_batch(options, data, Split::eval, 0, ranks, [&](auto& inputs, auto& targets) {
    result.eval_loss += reference.loss(inputs, targets);
  });
  return result;
}

class TrainerMath : public testing::TestWithParam<std::tuple<bool, std::uint32_t, bool>> {};

TEST_P(TrainerMath, LossesAndNormsAreThoseOfTheReference) {
  const auto& [tied, ranks, vertical] = GetParam();
  TrainerOptions options = small_options(tied);
  options.vertical = vertical;
  const Config config = small_config({0, 1, 0}, DType::fp32);
  const Result result = train_on_machine(options, config, ranks, 0);
  const Result expected = train_reference(options, config, ranks);
  constexpr double kRounding = 1e-5;  // relative; fp32 sums of some hundred terms
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(result.losses[step] / expected.losses[step], 1, kRounding) << "step " << step;
    EXPECT_NEAR(result.norms[step] / expected.norms[step], 1, 10 * kRounding) << "step " << step;
  }
  EXPECT_NEAR(result.eval_loss / expected.eval_loss, 1, kRounding);
  EXPECT_LT(result.losses.back(), result.losses.front());
}

INSTANTIATE_TEST_SUITE_P(TiedAndRanks, TrainerMath,
                         testing::Combine(testing::Bool(), testing::Values(1U, 2U),
                                          testing::Bool()));

TEST(TrainerOrder, WeightsAreThoseOfTheCpuDevice) {
  for (const bool tied : {true, false}) {
    const TrainerOptions options = small_options(tied);
    for (const std::uint32_t ranks : {1U, 2U}) {
      const std::string expected =
          train_on_cpu(options, small_config({1, 0, 0}, DType::bf16), ranks).hash;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(testing::Message()
                     << (tied ? "tied" : "untied") << ", " << ranks << " ranks, seed " << seed);
        const Result result =
            train_on_machine(options, small_config({0.2, 0.3, 0.5}, DType::bf16), ranks, seed);
        EXPECT_EQ(result.hash, expected);
      }
    }
  }
}

// Side by side the micro-batches round otherwise, but placement decides no bit here either.
// Gradients add up in fp32 and are rounded once, so that the losses are nearly those of fp32 on the
// wire.
TEST(TrainerOrder, WeightsOfVerticalAccumulationDoNotDependOnPlacement) {
  for (const bool tied : {true, false}) {
    TrainerOptions options = small_options(tied);
    options.vertical = true;
    options.accumulation = 3;
    Config config = small_config({1, 0, 0}, DType::bf16);
    config.precision.wide_gradients = true;
    const Result expected = train_on_cpu(options, config, 1);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      Config placed = small_config({0.2, 0.3, 0.5}, DType::bf16);
      placed.precision.wide_gradients = true;
      const Result result = train_on_machine(options, placed, 1, seed);
      EXPECT_EQ(result.hash, expected.hash) << seed;
    }
    const Result reference = train_reference(options, config, 1);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(expected.losses[step] / reference.losses[step], 1, 0.01) << step;
    }
  }
}

}  // namespace
}  // namespace train_gpt
