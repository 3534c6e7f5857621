#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/cuda_device.hpp"
#include "support/nccl_ranks.hpp"
#include "support/standin/standin.hpp"
#include "support/test_machine.hpp"

namespace strata::test {
namespace {

constexpr Bytes kMemory = 160_MiB;  // of each GPU: more than any test's budget

}  // namespace

struct TestMachine::State {
  std::uint32_t ranks;
  InProcessWorld world;                      // where the ranks meet
  std::vector<Communicator*> communicators;  // by rank; they live as long as their sessions
};

std::string TestMachine::missing_for(std::uint32_t) { return {}; }

TestMachine::TestMachine(std::uint32_t ranks, std::uint64_t seed)
    : state_(new State{ranks, InProcessWorld(ranks, seed), std::vector<Communicator*>(ranks)}) {
  standin::configure(
      {.devices = static_cast<int>(ranks),
       .memory = kMemory,
       .seed = seed,
       .policy = seed % 2 == 0 ? DemandPolicy::as_late_as_possible : DemandPolicy::random});
}

TestMachine::~TestMachine() { EXPECT_THAT(standin::finish(), testing::IsEmpty()); }

std::unique_ptr<Device> TestMachine::device(Rank rank, Bytes arena) {
  return std::make_unique<CudaDevice>(
      CudaDevice::Options{.arena = arena, .index = static_cast<int>(rank.value)});
}

Backends TestMachine::backends(Rank rank, const Config& config) {
  Backends backends;
  backends.communicator = join_by_nccl(state_->world, rank, state_->ranks);
  state_->communicators[rank.value] = backends.communicator.get();
  backends.device = device(rank, config.budgets.device);
  return backends;
}

void TestMachine::inspect(Session&) {}

void TestMachine::kill(Rank rank) { state_->communicators[rank.value]->abort("it was killed"); }

}  // namespace strata::test
