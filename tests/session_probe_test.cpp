// Ranks that find their machine's rates together.
#include <gtest/gtest.h>

#include <algorithm>

#include "strata/machine.hpp"
#include "support/in_process_ranks.hpp"
#include "support/toy_runs.hpp"

namespace strata::test {
namespace {

using ProbeRanks = TestOnMachine<2>;

// Placement is each rank's own: one has no files to measure, and the other must not wait for it.
TEST_F(ProbeRanks, MayRestTheirStatesInDifferentPlaces) {
  TestMachine machine(2, 1);
  run_ranks(2, [&](Rank rank, Communicator&) {
    Config config =
        rank == Rank{0} ? toy_config(kNvme, kHost, kNvme) : toy_config(kHost, kHost, kDevice);
    config.communicator.timeout_s = 20;
    Session session = Session::open(toy_model({}), config, backends_on(machine, rank, config), {});
    const MachineRates rates = session.probe();
    EXPECT_GT(rates.host_to_device_bytes_per_s, 0);
    EXPECT_GT(rates.collective_bytes_per_s, 0);
    EXPECT_GT(rates.exchange_s, 0);
    for (std::uint32_t u = 0; u < session.model().units().size(); ++u) {
      session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
        std::ranges::fill(values, 0.5F);
      });
    }
    EXPECT_FALSE(session.weights_hash().empty());
    machine.inspect(session);
  });
}

}  // namespace
}  // namespace strata::test
