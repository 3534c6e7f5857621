#include <gtest/gtest.h>

#include "support/adversarial_device.hpp"
#include "support/in_process_ranks.hpp"
#include "support/test_machine.hpp"

namespace strata::test {

struct TestMachine::State {
  std::uint64_t seed;
  InProcessWorld world;
};

std::string TestMachine::missing_for(std::uint32_t) { return {}; }

TestMachine::TestMachine(std::uint32_t ranks, std::uint64_t seed)
    : state_(new State{seed, InProcessWorld(ranks, seed)}) {}

TestMachine::~TestMachine() = default;

std::unique_ptr<Device> TestMachine::device(Rank rank, Bytes arena) {
  return std::make_unique<AdversarialDevice>(AdversarialDevice::Options{
      .arena = arena,
      .seed = state_->seed * 16 + rank.value,
      .policy = state_->seed % 2 == 0 ? DemandPolicy::as_late_as_possible : DemandPolicy::random});
}

Backends TestMachine::backends(Rank rank, const Config& config) {
  Backends backends;
  backends.communicator = state_->world.communicator(rank);
  backends.device = device(rank, config.budgets.device);
  return backends;
}

void TestMachine::inspect(Session& session) {
  const auto& device = dynamic_cast<const AdversarialDevice&>(session.device());
  for (const std::string& violation : device.violations()) ADD_FAILURE() << violation;
}

void TestMachine::kill(Rank rank) { state_->world.kill(rank); }

}  // namespace strata::test
