// Whole sessions on devices that run work late and out of order and check every access, with
// ranks that arrive at random times: the weights must be those of the well-behaved CPU device.
// STRATA_SEEDS=N runs N seeds (default 10).
#include <gtest/gtest.h>

#include <cstdlib>

#include "cpu/cpu_device.hpp"
#include "support/adversarial_device.hpp"
#include "support/in_process_ranks.hpp"
#include "support/simulated_disk.hpp"
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
  return config;
}

std::string run_world(const Setting& setting, std::uint64_t seed, bool adversarial) {
  const Config config = config_of(setting);
  const ToyOptions options{.steps = 2, .micro_batches = setting.micro_batches, .scale_elems = 4000};
  InProcessWorld world(setting.ranks, seed);
  std::vector<std::string> hashes(setting.ranks);
  run_ranks(setting.ranks, [&](Rank rank, Communicator&) {
    Backends backends;
    backends.communicator = world.communicator(rank);
    AdversarialDevice* checker = nullptr;
    if (adversarial) {
      auto device = std::make_unique<AdversarialDevice>(AdversarialDevice::Options{
          .arena = config.budgets.device,
          .seed = seed * 16 + rank.value,
          .policy = seed % 2 == 0 ? DemandPolicy::as_late_as_possible : DemandPolicy::random});
      checker = device.get();
      backends.device = std::move(device);
    } else {
      backends.device =
          std::make_unique<CpuDevice>(CpuDevice::Options{.arena = config.budgets.device});
    }
    backends.block_io = std::make_unique<SimulatedDisk>(
        SimulatedDisk::Options{.seed = seed + 1, .delivery = SimulatedDisk::Delivery::background});
    const ToyResult result = run_toy(options, config, std::move(backends), [&](Session&) {
      if (checker == nullptr) return;
      for (const std::string& violation : checker->violations()) ADD_FAILURE() << violation;
    });
    hashes[rank.value] = result.states_hash;
  });
  for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
  return hashes[0];
}

TEST(AdversarialSession, WeightsAreThoseOfTheCpuDevice) {
  for (const std::uint32_t ranks : {1U, 2U, 4U}) {
    for (const std::uint32_t micro_batches : {1U, 2U}) {
      const std::string expected = run_world({ranks, micro_batches, 0}, 0, false);
      for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
        const auto placement = static_cast<std::uint32_t>(seed % std::size(kPlacements));
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << ranks << " ranks, " << micro_batches
                     << " micro-batches, placement " << placement);
        ASSERT_EQ(run_world({ranks, micro_batches, placement}, seed, true), expected);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace strata::test
