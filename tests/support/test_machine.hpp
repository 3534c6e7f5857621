// The machine that a test of whole sessions runs on: a device and a communicator for each of its
// ranks, all in one process. Every test program links one implementation, so that the same tests
// run on each of them: cpu_machine.cpp (CPU devices, in-process ranks), adversarial_machine.cpp
// (the same on devices that run late and check every access), standin_machine.cpp (the CUDA device
// and the NCCL communicator on the stand-in of CUDA and NCCL) and gpu_machine.cpp (the same on the
// GPUs of this machine).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "strata/config.hpp"
#include "strata/session.hpp"

namespace strata::test {

class TestMachine {
 public:
  // What this machine lacks for so many ranks; empty: nothing.
  static std::string missing_for(std::uint32_t ranks);

  // The seed decides about timing, where it is free.
  explicit TestMachine(std::uint32_t ranks, std::uint64_t seed = 0);
  // Complains, as failures of the running test, about what the machine saw and must not see.
  ~TestMachine();
  TestMachine(const TestMachine&) = delete;
  TestMachine& operator=(const TestMachine&) = delete;

  // A rank's device with an arena of so many bytes.
  std::unique_ptr<Device> device(Rank rank, Bytes arena);

  // Device and communicator of one rank; the rest is the test's. Called once for each rank, on the
  // rank's own thread: ranks may wait for each other.
  Backends backends(Rank rank, const Config& config);

  // Complains about what a rank's device saw so far. Before the session ends.
  void inspect(Session& session);

  // Ends a rank as if its process had died, as far as the machine can. On the rank's thread.
  void kill(Rank rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A test that is skipped where the machine lacks something for `Ranks` ranks.
template <std::uint32_t Ranks>
class TestOnMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = TestMachine::missing_for(Ranks);
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

}  // namespace strata::test
