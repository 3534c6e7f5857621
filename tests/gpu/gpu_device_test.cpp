// The conformance suites on the GPUs of this machine, with the real CUDA runtime and NCCL.
#include <gtest/gtest.h>

#include "communicator_conformance.hpp"
#include "cuda/cuda_device.hpp"
#include "device_conformance.hpp"
#include "support/nccl_ranks.hpp"
#include "support/test_machine.hpp"

namespace strata::test {
namespace {

DeviceUnderTest real_device(const std::string& name, cuda::ArenaSource source) {
  return {.name = name,
          .make =
              [=](Bytes arena) {
                return std::make_unique<CudaDevice>(
                    CudaDevice::Options{.arena = arena, .source = source});
              },
          .missing = [] { return TestMachine::missing_for(1); },
          .violations = [](Device&) { return std::vector<std::string>{}; }};
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceConformance,
                         testing::Values(real_device("malloc", cuda::ArenaSource::malloc),
                                         real_device("pool", cuda::ArenaSource::pool)),
                         [](const auto& instance) { return instance.param.name; });

// Ranks of one process, each on a GPU of its own. NCCL sums in an order of its own: no more than
// two ranks must give the very bits that the suite computes.
TestWorld ranks_on_gpus(std::uint32_t ranks) {
  const auto run = [=](const RankTest& test) {
    InProcessWorld meeting(ranks);
    run_ranks(ranks, [&](Rank rank, Communicator&) {
      CudaDevice device({.arena = kTestArena, .index = static_cast<int>(rank.value)});
      const auto communicator = join_by_nccl(meeting, rank, ranks);
      communicator->attach(device);
      RankContext context{*communicator, device};
      test(context);
    });
  };
  return {.name = "ranks_" + std::to_string(ranks), .on_every_rank = run, .missing = [=] {
            return TestMachine::missing_for(ranks);
          }};
}

INSTANTIATE_TEST_SUITE_P(Gpu, CommunicatorConformance,
                         testing::Values(ranks_on_gpus(1), ranks_on_gpus(2)), name_of_world);

INSTANTIATE_TEST_SUITE_P(Gpu, CommunicatorFailures, testing::Values(ranks_on_gpus(2)),
                         name_of_world);

}  // namespace
}  // namespace strata::test
