#include "cpu/cpu_device.hpp"
#include "self/self_communicator.hpp"
#include "support/in_process_ranks.hpp"
#include "support/test_machine.hpp"

namespace strata::test {

struct TestMachine::State {
  std::uint32_t ranks;
  InProcessWorld world;
};

std::string TestMachine::missing_for(std::uint32_t) { return {}; }

TestMachine::TestMachine(std::uint32_t ranks, std::uint64_t seed)
    : state_(new State{ranks, InProcessWorld(ranks, seed)}) {}

TestMachine::~TestMachine() = default;

std::unique_ptr<Device> TestMachine::device(Rank, Bytes arena) {
  return std::make_unique<CpuDevice>(CpuDevice::Options{.arena = arena});
}

Backends TestMachine::backends(Rank rank, const Config& config) {
  Backends backends;
  backends.communicator =
      state_->ranks == 1 ? create_self_communicator() : state_->world.communicator(rank);
  backends.device = device(rank, config.budgets.device);
  return backends;
}

void TestMachine::inspect(Session&) {}

void TestMachine::kill(Rank rank) { state_->world.kill(rank); }

}  // namespace strata::test
