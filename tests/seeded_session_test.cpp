// Whole sessions on machines that run work late and out of order and check every access, with
// ranks that arrive at random times: the weights must be those of the well-behaved CPU device.
// STRATA_SEEDS=N runs N seeds (default 10).
#include <gtest/gtest.h>

#include <cstdlib>

#include "cpu/cpu_device.hpp"
#include "support/in_process_ranks.hpp"
#include "support/simulated_disk.hpp"
#include "support/test_machine.hpp"
#include "support/toy_program.hpp"

namespace strata::test {
namespace {

std::uint64_t seeds() {
  const char* text = std::getenv("STRATA_SEEDS");
  return text == nullptr ? 10 : std::strtoull(text, nullptr, 10);
}

struct Setting {
  std::uint32_t ranks;
  std::uint32_t micro_batches;
  std::uint32_t placement;
  unsigned look_ahead = 0;
  std::uint64_t deviations = 0;
  // Without clipping: updates may begin before the verdict, in backward or not.
  bool clips = true;
  bool in_backward = false;
};

constexpr TierFractions kPlacements[][3] = {
    {kDevice, kDevice, kDevice}, {kHost, kHost, kHost}, {kNvme, kNvme, kNvme},
    {kMixed, kMixed, kMixed},    {kHost, kHost, kNvme}, {kNvme, kDevice, kMixed},
};

Config config_of(const Setting& setting) {
  const auto& [param, grad, optimizer] = kPlacements[setting.placement];
  Config config = toy_config(param, grad, optimizer);
  config.engine.max_micro_batches = setting.micro_batches;
  config.budgets.device = 8_MiB;
  config.engine.look_ahead = setting.look_ahead;
  if (!setting.clips) {
    config.optimizer.clip_norm = 0;
    config.optimizer.nonfinite = Config::Nonfinite::abort;
    config.optimizer.in_backward = setting.in_backward;
  }
  return config;
}

// Trains on ranks whose backends come from `backends_of`, and returns the hash of their states.
template <class BackendsOf>
std::string train(const Setting& setting, std::uint64_t seed, BackendsOf&& backends_of,
                  const std::function<void(Session&)>& inspect) {
  const Config config = config_of(setting);
  const ToyOptions options{.steps = setting.deviations == 0 ? 3U : 6U,
                           .micro_batches = setting.micro_batches,
                           .scale_elems = 4000,
                           .deviations = setting.deviations};
  std::vector<std::string> hashes(setting.ranks);
  run_ranks(setting.ranks, [&](Rank rank, Communicator&) {
    Backends backends = backends_of(rank, config);
    backends.block_io = std::make_unique<SimulatedDisk>(
        SimulatedDisk::Options{.seed = seed + 1, .delivery = SimulatedDisk::Delivery::background});
    hashes[rank.value] = run_toy(options, config, std::move(backends), inspect).states_hash;
  });
  for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
  return hashes[0];
}

std::string train_on_cpu(const Setting& setting) {
  InProcessWorld world(setting.ranks, 0);
  const auto backends_of = [&](Rank rank, const Config& config) {
    Backends backends;
    backends.communicator = world.communicator(rank);
    backends.device =
        std::make_unique<CpuDevice>(CpuDevice::Options{.arena = config.budgets.device});
    return backends;
  };
  return train(setting, 0, backends_of, {});
}

std::string train_on_machine(const Setting& setting, std::uint64_t seed) {
  TestMachine machine(setting.ranks, seed);
  return train(
      setting, seed,
      [&](Rank rank, const Config& config) { return machine.backends(rank, config); },
      [&](Session& session) { machine.inspect(session); });
}

using SeededSession = TestOnMachine<1>;

TEST_F(SeededSession, WeightsAreThoseOfTheCpuDevice) {
  for (const std::uint32_t ranks : {1U, 2U, 4U}) {
    if (!TestMachine::missing_for(ranks).empty()) continue;
    for (const std::uint32_t micro_batches : {1U, 2U}) {
      const std::string expected = train_on_cpu({ranks, micro_batches, 0});
      for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
        const auto placement = static_cast<std::uint32_t>(seed % std::size(kPlacements));
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << ranks << " ranks, " << micro_batches
                     << " micro-batches, placement " << placement);
        const auto look_ahead = static_cast<unsigned>(seed % 4);
        ASSERT_EQ(train_on_machine({ranks, micro_batches, placement, look_ahead}, seed), expected);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// Predictions cost time and nothing else.
TEST_F(SeededSession, DeviationsChangeNothing) {
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    const std::uint32_t ranks = TestMachine::missing_for(2).empty() ? 1 + seed % 2 : 1;
    const auto placement = static_cast<std::uint32_t>(seed % std::size(kPlacements));
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", " << ranks << " ranks, placement " << placement);
    for (const bool in_backward : {false, true}) {
      const std::string expected = train_on_cpu({ranks, 2, 0, 0, seed + 1, !in_backward});
      const auto look_ahead = static_cast<unsigned>(1 + seed % 3);
      ASSERT_EQ(train_on_machine(
                    {ranks, 2, placement, look_ahead, seed + 1, !in_backward, in_backward}, seed),
                expected);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace strata::test
