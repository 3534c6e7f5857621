#include <fmt/format.h>

#include <optional>

#include "cuda/cuda_device.hpp"
#include "support/nccl_ranks.hpp"
#include "support/test_machine.hpp"

namespace strata::test {

struct TestMachine::State {
  std::uint32_t ranks;
  InProcessWorld world;                      // where the ranks meet
  std::vector<Communicator*> communicators;  // by rank; they live as long as their sessions
};

std::string TestMachine::missing_for(std::uint32_t ranks) {
  try {
    const auto gpus = static_cast<std::uint32_t>(CudaDevice::count());
    return gpus >= ranks ? "" : fmt::format("{} GPUs are needed and {} visible", ranks, gpus);
  } catch (const Error& error) {
    return error.what();
  }
}

TestMachine::TestMachine(std::uint32_t ranks, std::uint64_t seed)
    : state_(new State{ranks, InProcessWorld(ranks, seed), std::vector<Communicator*>(ranks)}) {}

TestMachine::~TestMachine() = default;

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

void TestMachine::inspect(Session& session) {
  if (const std::optional<Error> failure = session.device().failure()) {
    ADD_FAILURE() << failure->what();
  }
}

void TestMachine::kill(Rank rank) { state_->communicators[rank.value]->abort("it was killed"); }

}  // namespace strata::test
