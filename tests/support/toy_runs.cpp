#include "support/toy_runs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "support/in_process_ranks.hpp"
#include "support/simulated_disk.hpp"

namespace strata::test {

Backends backends_on(TestMachine& machine, Rank rank, const Config& config) {
  Backends backends = machine.backends(rank, config);
  backends.block_io = std::make_unique<SimulatedDisk>(
      SimulatedDisk::Options{.delivery = SimulatedDisk::Delivery::background});
  return backends;
}

Session open_initialized(TestMachine& machine, Rank rank, const Config& config,
                         SessionOptions options) {
  Session session =
      Session::open(toy_model({}), config, backends_on(machine, rank, config), std::move(options));
  for (std::uint32_t u = 0; u < session.model().units().size(); ++u) {
    session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
      std::ranges::fill(values, 0.5F);
    });
  }
  return session;
}

ToyResult run_alone(const ToyOptions& options, const Config& config,
                    const std::function<void(Session&)>& inspect) {
  TestMachine machine(1, options.seed);
  return run_toy(options, config, backends_on(machine, Rank{0}, config), inspect);
}

ToyResult run_on_ranks(std::uint32_t ranks, const ToyOptions& options, const Config& config) {
  TestMachine machine(ranks, options.seed);
  std::vector<ToyResult> results(ranks);
  run_ranks(ranks, [&](Rank rank, Communicator&) {
    results[rank.value] = run_toy(options, config, backends_on(machine, rank, config));
  });
  for (const ToyResult& result : results) {
    EXPECT_EQ(result.states_hash, results[0].states_hash);
    for (std::size_t s = 0; s < result.steps.size(); ++s) {
      const double norm = results[0].steps[s].grad_norm;
      EXPECT_TRUE(result.steps[s].grad_norm == norm || std::isnan(norm));
    }
  }
  return results[0];
}

}  // namespace strata::test
