// One training with its states on the GPU, in host memory, in files and split over all three: one
// hash of all states, which is also the CPU device's. Prints the hashes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cpu/cpu_device.hpp"
#include "self/self_communicator.hpp"
#include "support/test_machine.hpp"
#include "support/toy_program.hpp"

namespace strata::test {
namespace {

class GpuPlacement : public TestOnMachine<1> {
 protected:
  GpuPlacement() { std::filesystem::create_directory(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // In files of this machine, as a user's session has them.
  std::string hash_of(const TierFractions& homes, Backends backends) {
    Config config = toy_config(homes, homes, homes);
    config.nvme.directories = {directory_};
    config.nvme.allow_tmpfs = true;
    config.engine.max_micro_batches = 2;
    const ToyOptions options{.steps = 4, .micro_batches = 2, .scale_elems = 200'000};
    return run_toy(options, config, std::move(backends)).states_hash;
  }

  const std::string directory_ = fmt::format("{}gpu_placement_{}", testing::TempDir(), ::getpid());
};

TEST_F(GpuPlacement, EveryHomeGivesTheHashOfTheCpu) {
  const Config config = toy_config(kDevice, kDevice, kDevice);
  Backends on_cpu;
  on_cpu.communicator = create_self_communicator();
  on_cpu.device = std::make_unique<CpuDevice>(CpuDevice::Options{.arena = config.budgets.device});
  const std::string expected = hash_of(kDevice, std::move(on_cpu));
  fmt::print("hash\tCPU device\t{}\n", expected);
  struct Placed {
    const char* name;
    TierFractions homes;
  };
  for (const auto& [name, homes] : {Placed{"device", kDevice}, Placed{"host", kHost},
                                    Placed{"nvme", kNvme}, Placed{"mixed", kMixed}}) {
    TestMachine machine(1);
    const std::string hash = hash_of(homes, machine.backends(Rank{0}, config));
    fmt::print("hash\t{}\t{}\n", name, hash);
    EXPECT_EQ(hash, expected) << name;
  }
}

}  // namespace
}  // namespace strata::test
