// Whole sessions on real streams: placements, precision, accumulation, verdict, errors.
#include "strata/session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "support/in_process_ranks.hpp"
#include "support/simulated_disk.hpp"
#include "support/toy_runs.hpp"

namespace strata::test {
namespace {

using SessionAlone = TestOnMachine<1>;
using SessionRanks = TestOnMachine<4>;

TEST_F(SessionAlone, PlacementNeverChangesTheResult) {
  for (const std::uint32_t ranks : {1U, 2U, 4U}) {
    if (!TestMachine::missing_for(ranks).empty()) continue;
    for (const std::uint32_t micro_batches : {1U, 3U}) {
      const ToyOptions options{.micro_batches = micro_batches};
      std::string expected;
      for (const Placed& placed : kPlacements) {
        Config config = toy_config(placed.param, placed.grad, placed.optimizer);
        config.engine.max_micro_batches = micro_batches;
        const ToyResult result = run_on_ranks(ranks, options, config);
        if (expected.empty()) expected = result.states_hash;
        EXPECT_EQ(result.states_hash, expected)
            << placed.name << ", " << ranks << " ranks, " << micro_batches << " micro-batches";
      }
    }
  }
}

// AdamW in fp64 on fp32 weights and gradients, written from the paper and not from the library.
class Reference {
 public:
  Reference(const ToyOptions& options, const Config& config)
      : options_(options), config_(config), model_(toy_model(options)) {
    for (std::uint32_t u = 0; u < model_.units().size(); ++u) {
      for (std::uint32_t t = 0; t < model_.units()[u].tensors.size(); ++t) {
        const TensorSpec& tensor = model_.units()[u].tensors[t];
        State& state = states_[{u, t}];
        for (std::uint64_t i = 0; i < tensor.count_elems(); ++i) {
          state.w.push_back(toy_initial(options.seed, UnitId{u}, TensorId{t}, i));
        }
        state.m.assign(state.w.size(), 0);
        state.v.assign(state.w.size(), 0);
        state.trainable = tensor.trainable;
      }
    }
  }

  double step(std::uint32_t step, std::uint32_t ranks) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<double>> gradients;
    double squares = 0;
    for (auto& [key, state] : states_) {
      if (!state.trainable) continue;
      auto& g = gradients[key];
      for (std::uint64_t i = 0; i < state.w.size(); ++i) {
        double sum = 0;
        for (std::uint32_t m = 0; m < options_.micro_batches; ++m) {
          for (std::uint32_t r = 0; r < ranks; ++r) {
            sum += toy_gradient(options_.seed, step, m, r, UnitId{key.first}, TensorId{key.second},
                                i, static_cast<float>(state.w[i]));
          }
        }
        g.push_back(sum / ranks);
        squares += g.back() * g.back();
      }
    }
    const double norm = std::sqrt(squares);
    const Config::Optimizer& o = config_.optimizer;
    const double factor = o.clip_norm > 0 ? std::min(1.0, o.clip_norm / (norm + 1e-6)) : 1;
    const double t = step + 1;
    for (auto& [key, g] : gradients) {
      State& state = states_[key];
      for (std::size_t i = 0; i < g.size(); ++i) {
        const double gi = g[i] * factor;
        state.w[i] -= o.learning_rate * o.weight_decay * state.w[i];
        state.m[i] = o.beta1 * state.m[i] + (1 - o.beta1) * gi;
        state.v[i] = o.beta2 * state.v[i] + (1 - o.beta2) * gi * gi;
        const double m_hat = state.m[i] / (1 - std::pow(o.beta1, t));
        const double v_hat = state.v[i] / (1 - std::pow(o.beta2, t));
        state.w[i] -= o.learning_rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
      }
    }
    return norm;
  }

  double weight(UnitId unit, TensorId tensor, std::uint64_t i) {
    return states_[{unit.value, tensor.value}].w[i];
  }

 private:
  struct State {
    std::vector<double> w, m, v;
    bool trainable = true;
  };
  const ToyOptions options_;
  const Config config_;
  const Model model_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, State> states_;
};

TEST_F(SessionRanks, Fp32TrainingFollowsAnIndependentReference) {
  const ToyOptions options{.steps = 4, .micro_batches = 2, .scale_elems = 3000};
  Config config = toy_config(kHost, kHost, kNvme);
  config.precision = {DType::fp32, DType::fp32};
  config.engine.max_micro_batches = 2;
  config.optimizer.learning_rate = 0.01;
  const std::uint32_t ranks = 2;
  Reference reference(options, config);
  std::vector<double> norms;
  for (std::uint32_t s = 0; s < options.steps; ++s) norms.push_back(reference.step(s, ranks));

  TestMachine machine(ranks, 1);
  run_ranks(ranks, [&](Rank rank, Communicator&) {
    const ToyResult result =
        run_toy(options, config, backends_on(machine, rank, config), [&](Session& session) {
          for (std::uint32_t u = 0; u < session.model().units().size(); ++u) {
            session.read(UnitId{u}, "param",
                         [&](const TensorSlice& slice, std::span<const float> values) {
                           for (std::size_t i = 0; i < values.size(); ++i) {
                             const double right =
                                 reference.weight(slice.unit, slice.tensor, slice.offset_elems + i);
                             // Each step moves a weight by about the learning rate; fp32 rounds it.
                             ASSERT_NEAR(values[i], right, 2e-6) << u << " " << slice.tensor.value;
                           }
                         });
          }
        });
    for (std::uint32_t s = 0; s < options.steps; ++s) {
      EXPECT_NEAR(result.steps[s].grad_norm, norms[s], 1e-5 * norms[s]);
    }
  });
}

TEST_F(SessionAlone, ReservesWhatItProvedAndStaysBelowIt) {
  for (const Placed& placed : kPlacements) {
    const Config config = toy_config(placed.param, placed.grad, placed.optimizer);
    const ToyResult result = run_alone({}, config);
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const TierUsage& usage = result.usage[static_cast<std::size_t>(tier)];
      EXPECT_EQ(usage.reserved, result.plan.total(tier)) << placed.name << " " << name_of(tier);
      EXPECT_LE(usage.peak_in_use, usage.reserved) << placed.name << " " << name_of(tier);
    }
  }
}

TEST_F(SessionAlone, SmallestBudgetThatItNamesWorksAndOneByteLessDoesNot) {
  Config config = toy_config(kHost, kHost, kNvme);
  config.engine.look_ahead = 0;  // the floor; with it, open() takes what is free
  const MemoryPlan plan = Session::plan_memory(
      toy_model({}), config, 1, 1, {.device_scratch = Bytes{256}, .host_scratch = {}, .log = {}});
  config.budgets.device = plan.total(Tier::device);
  config.budgets.host = plan.total(Tier::host);
  config.budgets.nvme = plan.total(Tier::nvme);
  config.engine.look_ahead = 2;
  EXPECT_NO_THROW(run_alone({.steps = 3}, config));
  for (Bytes* budget : {&config.budgets.device, &config.budgets.host, &config.budgets.nvme}) {
    const Bytes enough = *budget;
    *budget -= Bytes{1};
    try {
      run_alone({.steps = 1}, config);
      ADD_FAILURE() << "a budget that is one byte too small was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::budget_exceeded);
      EXPECT_NE(std::string(error.what()).find(std::to_string(enough.value)), std::string::npos)
          << error.what();
    }
    *budget = enough;
  }
}

TEST_F(SessionRanks, NonfiniteGradientSkipsTheStepOnEveryRank) {
  for (const Placed& placed : kPlacements) {
    for (const std::uint32_t micro_batches : {1U, 2U}) {
      Config config = toy_config(placed.param, placed.grad, placed.optimizer);
      config.engine.max_micro_batches = micro_batches;
      const ToyOptions before{.steps = 2, .micro_batches = micro_batches};
      ToyOptions spoiled = before;
      spoiled.steps = 3;
      spoiled.nonfinite_step = 2;
      spoiled.nonfinite_rank = 1;
      const ToyResult skipped = run_on_ranks(2, spoiled, config);
      EXPECT_TRUE(skipped.steps[2].skipped) << placed.name;
      EXPECT_FALSE(skipped.steps[2].updated);
      EXPECT_EQ(skipped.states_hash, run_on_ranks(2, before, config).states_hash) << placed.name;
      EXPECT_EQ(skipped.steps[2].step, 2U);
    }
  }
}

TEST_F(SessionAlone, StepAfterASkippedOneIsClean) {
  Config config = toy_config(kMixed, kMixed, kMixed);
  ToyOptions options{.steps = 4};
  options.nonfinite_step = 1;
  options.nonfinite_rank = 0;
  const ToyResult result = run_alone(options, config);
  EXPECT_TRUE(result.steps[1].skipped);
  EXPECT_TRUE(result.steps[2].updated);
  EXPECT_TRUE(std::isfinite(result.steps[3].grad_norm));
  EXPECT_EQ(result.steps[3].step, 3U);
}

TEST_F(SessionAlone, AbortsOnNonfiniteWhenAsked) {
  Config config = toy_config(kHost, kHost, kHost);
  config.optimizer.nonfinite = Config::Nonfinite::abort;
  ToyOptions options{.steps = 2};
  options.nonfinite_step = 1;
  try {
    run_alone(options, config);
    ADD_FAILURE() << "a non-finite gradient went through";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::numerics);
  }
}

TEST_F(SessionAlone, AbsentUnitKeepsItsStates) {
  std::string expected;
  for (const Placed& placed : kPlacements) {
    const Config config = toy_config(placed.param, placed.grad, placed.optimizer);
    const ToyOptions options{.steps = 4, .skip_last_unit_in_odd_steps = true};
    const ToyResult result = run_alone(options, config);
    if (expected.empty()) expected = result.states_hash;
    EXPECT_EQ(result.states_hash, expected) << placed.name;
    EXPECT_FALSE(result.steps[1].pattern_repeated);
    EXPECT_NE(result.states_hash, run_alone({.steps = 4}, config).states_hash);
  }
}

TEST_F(SessionAlone, MovesNoMoreThanTheFloor) {
  for (const std::uint32_t g : {1U, 4U}) {
    for (const Placed& placed : kPlacements) {
      Config config = toy_config(placed.param, placed.grad, placed.optimizer);
      config.engine.max_micro_batches = g;
      config.engine.look_ahead = 0;  // each update belongs to its step
      Session::LinkFloor floor;
      double elements = 0;
      const ToyOptions options{.steps = 3, .micro_batches = g, .scale_elems = 200000};
      const ToyResult result = run_alone(options, config, [&](Session& session) {
        floor = session.byte_floor(g);
        elements = static_cast<double>(session.model().count_elems());
      });
      const auto expect_near = [&](Bytes moved, double per_param, const char* link) {
        // Extents are rounded up to whole sectors; the sums of a gradient are 8 bytes per block.
        EXPECT_NEAR(static_cast<double>(moved.value), per_param * elements,
                    0.02 * per_param * elements + 1024)
            << placed.name << " " << link << " g=" << g;
      };
      const LinkBytes& moved = result.steps[2].bytes;
      expect_near(moved.nvme_read, floor.nvme_read, "nvme read");
      expect_near(moved.nvme_written, floor.nvme_written, "nvme written");
      expect_near(moved.host_to_device, floor.host_to_device, "h2d");
      expect_near(moved.device_to_host, floor.device_to_host, "d2h");
    }
  }
}

TEST_F(SessionRanks, WeightsHashDoesNotDependOnRanksBeforeTraining) {
  const Config config = toy_config(kHost, kHost, kHost);
  const std::string alone = run_alone({.steps = 0}, config).states_hash;
  EXPECT_EQ(run_on_ranks(3, {.steps = 0}, config).states_hash, alone);
  EXPECT_NE(run_alone({.steps = 0, .seed = 2}, config).states_hash, alone);
}

class Misuse : public TestOnMachine<1> {
 protected:
  void SetUp() override {
    TestOnMachine::SetUp();
    if (IsSkipped()) return;
    machine_.emplace(1);
    session_.emplace(open_initialized(*machine_, Rank{0}, config_));
    stream_ = session_->device().create_stream("compute");
  }

  template <class Call>
  void expect_error(ErrorCode code, const std::string& part, Call&& call) {
    try {
      call();
      ADD_FAILURE() << "no error: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  const Config config_ = toy_config(kHost, kHost, kHost);
  std::optional<TestMachine> machine_;
  std::optional<Session> session_;
  StreamId stream_;
};

TEST_F(Misuse, CallsOutsideAStep) {
  expect_error(ErrorCode::invalid_argument, "begin_step",
               [&] { (void)session_->gather(UnitId{0}, stream_); });
  const Step step = session_->begin_step();
  expect_error(ErrorCode::invalid_argument, "inside a step", [&] { (void)session_->begin_step(); });
  expect_error(ErrorCode::invalid_argument, "inside a step",
               [&] { (void)session_->weights_hash(); });
}

TEST_F(Misuse, MoreLiveUnitsThanDeclared) {
  const Step step = session_->begin_step();
  const GatherLease first = session_->gather(UnitId{0}, stream_);
  {
    const GatherLease second = session_->gather(UnitId{1}, stream_);
    expect_error(ErrorCode::budget_exceeded, "embed",
                 [&] { (void)session_->gather(UnitId{2}, stream_); });
    const GatherLease again = session_->gather(UnitId{1}, stream_);
    EXPECT_EQ(again[TensorId{0}].data, second[TensorId{0}].data);
  }
  EXPECT_NO_THROW((void)session_->gather(UnitId{2}, stream_));
}

TEST_F(Misuse, GradientBufferLentTwice) {
  const Step step = session_->begin_step();
  GradientLease gradients = session_->gradients(UnitId{0}, stream_);
  expect_error(ErrorCode::budget_exceeded, "lent",
               [&] { (void)session_->gradients(UnitId{1}, stream_); });
  session_->reduce(std::move(gradients), stream_);
  EXPECT_NO_THROW((void)session_->gradients(UnitId{1}, stream_));
}

TEST_F(Misuse, ReductionBeyondTheDeclaredOnes) {
  const Step step = session_->begin_step();
  session_->reduce(session_->gradients(UnitId{1}, stream_), stream_);
  expect_error(ErrorCode::invalid_argument, "block.0",
               [&] { (void)session_->gradients(UnitId{1}, stream_); });
}

TEST_F(Misuse, FrozenTensorHasNoGradient) {
  const Step step = session_->begin_step();
  GradientLease gradients = session_->gradients(UnitId{2}, stream_);
  expect_error(ErrorCode::invalid_argument, "frozen", [&] { (void)gradients[TensorId{1}]; });
}

TEST_F(Misuse, TooManyMicroBatchesAndUnknownKinds) {
  expect_error(ErrorCode::invalid_argument, "max_micro_batches",
               [&] { (void)session_->begin_step({.micro_batches = 2}); });
  expect_error(ErrorCode::invalid_argument, "master",
               [&] { session_->read(UnitId{0}, "momentum", [](auto&&...) {}); });
}

TEST_F(Misuse, AbandonedStepLeavesTheWeights) {
  const std::string before = session_->weights_hash(true);
  {
    const Step step = session_->begin_step();
    session_->reduce(session_->gradients(UnitId{1}, stream_), stream_);
  }
  EXPECT_EQ(session_->weights_hash(true), before);
  EXPECT_FALSE(session_->begin_step().end().updated);
}

TEST_F(Misuse, ScratchBeyondTheBudget) {
  expect_error(ErrorCode::budget_exceeded, "scratch",
               [&] { (void)session_->scratch(Tier::device, 1_GiB); });
  const ScratchLease some = session_->scratch(Tier::host, 1_MiB);
  EXPECT_EQ(some.memory().size(), (1_MiB).value);
}

TEST_F(Misuse, BytesOfOthersAreCharged) {
  const Bytes before = session_->usage(Tier::device).reserved;
  {
    const ScratchLease outside = session_->reserve_outside(Tier::device, 1_MiB);
    EXPECT_TRUE(outside.memory().empty());
    EXPECT_EQ(session_->usage(Tier::device).reserved, before + 1_MiB);
    EXPECT_EQ(session_->usage(Tier::device).in_use.value % 256, 0U);
  }
  EXPECT_EQ(session_->usage(Tier::device).reserved, before);
  expect_error(ErrorCode::budget_exceeded, "outside",
               [&] { (void)session_->reserve_outside(Tier::host, 1_GiB); });
}

TEST_F(Misuse, LeaseMayOutliveTheSession) {
  ScratchLease scratch = session_->scratch(Tier::device, 1_KiB);
  GatherLease gathered;
  {
    const Step step = session_->begin_step();
    gathered = session_->gather(UnitId{0}, stream_);
  }
  session_->close();
  EXPECT_NE(gathered[TensorId{0}].data, nullptr);
  gathered = GatherLease{};
  scratch = ScratchLease{};
}

TEST_F(Misuse, ClosedSessionRefusesWork) {
  session_->close();
  expect_error(ErrorCode::closed, "closed", [&] { (void)session_->begin_step(); });
  session_->close();
}

TEST_F(SessionRanks, DivergingCallsNameUnitsAndRanks) {
  const Config config = toy_config(kHost, kHost, kHost);
  TestMachine machine(2, 1);
  std::vector<std::string> messages(2);
  run_ranks(2, [&](Rank rank, Communicator&) {
    Session session = open_initialized(machine, rank, config);
    const StreamId stream = session.device().create_stream("compute");
    const Step step = session.begin_step();
    try {
      (void)session.gather(UnitId{rank.value}, stream);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::diverged) << error.what();
      messages[rank.value] = error.what();
    }
  });
  EXPECT_NE(messages[0].find("rank 0 calls gather(embed), rank 1 calls gather(block.0)"),
            std::string::npos)
      << messages[0];
}

// A collective of the program between the session's own, and what happens when one fails.
TEST_F(SessionRanks, IssueRunsTheProgramsCollectivesInOrder) {
  const Config config = toy_config(kHost, kHost, kHost);
  constexpr std::uint32_t kRanks = 2;
  TestMachine machine(kRanks, 1);
  run_ranks(kRanks, [&](Rank rank, Communicator&) {
    Session session = open_initialized(machine, rank, config,
                                       {.device_scratch = 1_KiB, .host_scratch = 1_KiB, .log = {}});
    Device& device = session.device();
    const StreamId stream = device.create_stream("compute");
    const ScratchLease on_device = session.scratch(Tier::device, 1_KiB);
    const ScratchLease on_host = session.scratch(Tier::host, 1_KiB);
    auto* const values = reinterpret_cast<float*>(on_host.memory().data());
    std::fill_n(values, 256, static_cast<float>(rank.value + 1));
    void* const data = on_device.memory().data();
    Step step = session.begin_step();
    { const GatherLease before = session.gather(UnitId{0}, stream); }
    device.copy(stream, data, values, 1_KiB, CopyKind::host_to_device);
    session.issue(stream, [&](Communicator& communicator, StreamId collectives) {
      communicator.all_reduce(collectives, data, 256, DType::fp32);
    });
    device.copy(stream, values, data, 1_KiB, CopyKind::device_to_host);
    { const GatherLease after = session.gather(UnitId{1}, stream); }
    device.synchronize(device.record(stream));
    EXPECT_EQ(values[0], 3.0F);
    EXPECT_EQ(values[255], 3.0F);
    EXPECT_FALSE(step.end().updated);
  });
}

TEST_F(SessionRanks, AFailingIssueEndsAllRanks) {
  const Config config = toy_config(kHost, kHost, kHost);
  TestMachine machine(2, 1);
  std::vector<std::string> messages(2);
  run_ranks(2, [&](Rank rank, Communicator&) {
    Session session = open_initialized(machine, rank, config);
    const StreamId stream = session.device().create_stream("compute");
    try {
      const Step step = session.begin_step();
      session.issue(stream, [&](Communicator&, StreamId) {
        if (rank.value == 1) throw std::runtime_error("no plan for this shape");
      });
      (void)session.gather(UnitId{0}, stream);
      ADD_FAILURE() << "the failure went unnoticed";
    } catch (const std::exception& error) {
      messages[rank.value] = error.what();
    }
  });
  EXPECT_EQ(messages[1], "no plan for this shape");
  EXPECT_NE(messages[0].find("no plan for this shape"), std::string::npos) << messages[0];
}

TEST_F(SessionRanks, LostRankEndsTheOthers) {
  Config config = toy_config(kHost, kHost, kHost);
  config.communicator.timeout_s = 0.5;
  TestMachine machine(2, 1);
  std::string message;
  run_ranks(2, [&](Rank rank, Communicator&) {
    Session session = open_initialized(machine, rank, config);
    const StreamId stream = session.device().create_stream("compute");
    if (rank.value == 1) {
      machine.kill(rank);
      return;
    }
    try {
      const Step step = session.begin_step();
      (void)session.gather(UnitId{0}, stream);
      ADD_FAILURE() << "a lost rank went unnoticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::rank_lost);
      message = error.what();
    }
  });
  EXPECT_NE(message.find('1'), std::string::npos) << message;
}

TEST_F(SessionRanks, FailureOfOneRankAtOpenEndsAll) {
  TestMachine machine(2, 1);
  std::vector<std::string> messages(2);
  run_ranks(2, [&](Rank rank, Communicator&) {
    Config config = toy_config(kHost, kHost, kNvme);
    if (rank.value == 1) config.budgets.nvme = 1_KiB;
    try {
      Session::open(toy_model({}), config, backends_on(machine, rank, config));
      ADD_FAILURE() << "opened without memory";
    } catch (const Error& error) {
      messages[rank.value] = error.what();
    }
  });
  EXPECT_NE(messages[0].find("rank 1 could not open the session"), std::string::npos)
      << messages[0];
  EXPECT_NE(messages[1].find("nvme budget"), std::string::npos) << messages[1];
}

}  // namespace
}  // namespace strata::test
