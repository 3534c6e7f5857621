// Sessions that follow schedules: what runs ahead, where leases end, updates in backward, ranks
// that leave the schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "strata/session.hpp"
#include "support/error_of.hpp"
#include "support/in_process_ranks.hpp"
#include "support/toy_runs.hpp"

namespace strata::test {
namespace {

using ScheduleAlone = TestOnMachine<1>;
using ScheduleRanks = TestOnMachine<4>;

TEST_F(ScheduleAlone, RepeatedPatternIsRecognised) {
  const ToyResult result = run_alone({.steps = 3}, toy_config(kHost, kHost, kHost));
  EXPECT_FALSE(result.steps[0].pattern_repeated);
  EXPECT_TRUE(result.steps[1].pattern_repeated);
  EXPECT_TRUE(result.steps[2].pattern_repeated);
}

// Ranks that follow a schedule do not ask each other at each call: one that leaves it alone is
// found where they meet next.
TEST_F(ScheduleRanks, ARankThatLeavesTheScheduleAloneIsAnErrorAndNoHang) {
  Config config = toy_config(kHost, kHost, kHost);
  config.communicator.timeout_s = 5;
  TestMachine machine(2, 1);
  std::vector<std::optional<Error>> errors(2);
  run_ranks(2, [&](Rank rank, Communicator&) {
    Session session = open_initialized(machine, rank, config);
    const StreamId stream = session.device().create_stream("compute");
    try {
      for (std::uint32_t i = 0; i < 3; ++i) {
        Step step = session.begin_step();
        for (std::uint32_t u = 0; u < 4; ++u) {
          const bool astray = i == 2 && u == 1 && rank == Rank{1};
          [[maybe_unused]] const auto lease = session.gather(UnitId{astray ? 3U : u}, stream);
        }
        step.end();
      }
    } catch (const Error& error) {
      errors[rank.value] = error;
    }
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_TRUE(error->code() == ErrorCode::diverged || error->code() == ErrorCode::rank_lost)
        << error->what();
  }
  EXPECT_NE(std::string(errors[1]->what()).find("gather(head)"), std::string::npos)
      << errors[1]->what();
}

// Where a lease ends is each rank's own affair, in the step that is recorded and in those after it.
TEST_F(ScheduleRanks, LeasesMayEndAtDifferentPlaces) {
  for (const unsigned look_ahead : {1U, 2U}) {
    Config config = toy_config(kNvme, kHost, kHost);
    config.engine.look_ahead = look_ahead;
    TestMachine machine(2, 1);
    run_ranks(2, [&](Rank rank, Communicator&) {
      Session session = open_initialized(machine, rank, config);
      const StreamId stream = session.device().create_stream("compute");
      for (std::uint32_t i = 0; i < 6; ++i) {
        Step step = session.begin_step();
        GatherLease held;
        for (std::uint32_t u = 0; u < 4; ++u) {
          GatherLease lease = session.gather(UnitId{u}, stream);
          held = {};
          if (rank.value == i % 3) held = std::move(lease);
        }
        held = {};
        step.end();
      }
      EXPECT_EQ(session.schedule_facts().followed, 5U);
      EXPECT_EQ(session.schedule_facts().deviations, 0U);
    });
  }
}

TEST_F(ScheduleRanks, ARankWithoutLookAheadKeepsTheOthersFromIt) {
  TestMachine machine(2, 1);
  run_ranks(2, [&](Rank rank, Communicator&) {
    Config config = toy_config(kHost, kHost, kHost);
    if (rank == Rank{1}) config.engine.look_ahead = 0;
    Session session = open_initialized(machine, rank, config);
    const StreamId stream = session.device().create_stream("compute");
    for (std::uint32_t i = 0; i < 3; ++i) {
      Step step = session.begin_step();
      for (std::uint32_t u = 0; u < 4; ++u) (void)session.gather(UnitId{u}, stream);
      step.end();
    }
    EXPECT_EQ(session.schedule_facts().followed, 0U);
  });
}

// A unit that stays on the device from step to step, as tied embeddings may.
TEST_F(ScheduleAlone, AUnitMayStayHeldFromStepToStep) {
  const Config config = toy_config(kNvme, kHost, kHost);
  TestMachine machine(1);
  Session session = open_initialized(machine, Rank{0}, config);
  const StreamId stream = session.device().create_stream("compute");
  GatherLease held;
  for (std::uint32_t i = 0; i < 6; ++i) {
    Step step = session.begin_step();
    GatherLease embed = session.gather(UnitId{0}, stream);
    for (std::uint32_t u = 1; u < 4; ++u) (void)session.gather(UnitId{u}, stream);
    held = std::move(embed);
    step.end();
  }
  EXPECT_EQ(session.schedule_facts().followed, 3U) << "all but the first, and two that deviate";
}

// Leases may end on other threads, while the caller goes on.
TEST_F(ScheduleAlone, LeasesMayEndOnOtherThreads) {
  const Config config = toy_config(kNvme, kHost, kHost);
  TestMachine machine(1);
  Session session = open_initialized(machine, Rank{0}, config);
  const StreamId stream = session.device().create_stream("compute");
  for (std::uint32_t i = 0; i < 8; ++i) {
    Step step = session.begin_step();
    std::vector<std::thread> threads;
    for (std::uint32_t u = 0; u < 4; ++u) {
      GatherLease lease;
      while (threads.size() >= 2) {
        threads.front().join();
        threads.erase(threads.begin());
      }
      lease = session.gather(UnitId{u}, stream);
      threads.emplace_back([ended = std::move(lease)]() mutable { ended = {}; });
    }
    for (std::thread& thread : threads) thread.join();
    step.end();
  }
  EXPECT_GT(session.schedule_facts().followed, 0U);
}

Config in_backward_config(const Placed& placed) {
  Config config = toy_config(placed.param, placed.grad, placed.optimizer);
  config.optimizer.clip_norm = 0;
  config.optimizer.nonfinite = Config::Nonfinite::abort;
  config.optimizer.in_backward = true;
  return config;
}

TEST_F(ScheduleRanks, UpdatesInBackwardGiveTheBitsOfUpdatesAfterTheVerdict) {
  for (const Placed& placed : kPlacements) {
    for (const std::uint32_t micro_batches : {1U, 2U}) {
      Config config = in_backward_config(placed);
      config.engine.max_micro_batches = micro_batches;
      const ToyOptions options{.steps = 4, .micro_batches = micro_batches};
      const std::string early = run_on_ranks(2, options, config).states_hash;
      config.optimizer.in_backward = false;
      config.engine.look_ahead = 0;
      EXPECT_EQ(early, run_on_ranks(2, options, config).states_hash) << placed.name;
    }
  }
}

TEST_F(ScheduleAlone, AnUpdateInBackwardDoesNotOutliveANonfiniteGradient) {
  for (const Placed& placed : kPlacements) {
    ToyOptions options{.steps = 2};
    options.nonfinite_step = 1;
    try {
      run_alone(options, in_backward_config(placed));
      ADD_FAILURE() << "a non-finite gradient went through";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::numerics);
      EXPECT_NE(std::string(error.what()).find("go back to a checkpoint"), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(ScheduleAlone, AUnitUpdatedInBackwardCannotBeGatheredInTheSameStep) {
  const Config config = in_backward_config(kPlacements[1]);
  TestMachine machine(1);
  Session session = Session::open(toy_model({}), config, backends_on(machine, Rank{0}, config));
  for (std::uint32_t u = 0; u < session.model().units().size(); ++u) {
    session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
      std::ranges::fill(values, 1.0F);
    });
  }
  const StreamId stream = session.device().create_stream("compute");
  {
    Step step = session.begin_step();
    GradientLease gradients = session.gradients(UnitId{3}, stream);
    [[maybe_unused]] const GradientView view = gradients[TensorId{0}];
    session.reduce(std::move(gradients), stream);
    EXPECT_EQ(
        error_of([&] { [[maybe_unused]] const auto lease = session.gather(UnitId{3}, stream); })
            .context()
            .unit,
        "head");
    EXPECT_TRUE(step.end().updated) << "the program may go on";
  }
  {
    Step step = session.begin_step();
    { [[maybe_unused]] const auto lease = session.gather(UnitId{3}, stream); }
    GradientLease gradients = session.gradients(UnitId{3}, stream);
    [[maybe_unused]] const GradientView view = gradients[TensorId{0}];
    session.reduce(std::move(gradients), stream);
    // Abandoned here: its states are neither those of the step before nor its own.
  }
  const Error error = error_of([&] { [[maybe_unused]] const Step step = session.begin_step(); });
  EXPECT_NE(std::string(error.what()).find("step 2 was abandoned"), std::string::npos)
      << error.what();
}

}  // namespace
}  // namespace strata::test
