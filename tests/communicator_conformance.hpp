// What every Communicator must do. A test program compiles communicator_conformance.cpp and
// instantiates the two suites with a way to run a function on every rank:
//
//   INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, testing::Values(...), name_of_world);
//   INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorFailures, ...);
//
// CommunicatorFailures leaves communicators broken on purpose, and with some adapters the process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "strata/communicator.hpp"
#include "strata/device.hpp"

namespace strata::test {

// What one rank's part of a test has: a communicator attached to a device of its own.
struct RankContext {
  Communicator& communicator;
  Device& device;
};

using RankTest = std::function<void(RankContext&)>;

struct TestWorld {
  std::string name;
  // Runs the function on every rank of a fresh world. A program that is itself one rank of many
  // runs it once. Staging, if any, is small against kLargeElems.
  std::function<void(const RankTest&)> on_every_rank;
  // What this machine lacks for it; empty: nothing.
  std::function<std::string()> missing = [] { return std::string(); };
};

// Bytes of arena that the tests need, and elements of the largest shard.
inline constexpr Bytes kTestArena = 32_MiB;
inline constexpr std::uint64_t kLargeElems = 100'003;

class TestInWorld : public testing::TestWithParam<TestWorld> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam().missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};
class CommunicatorConformance : public TestInWorld {};
class CommunicatorFailures : public TestInWorld {};

inline std::string name_of_world(const testing::TestParamInfo<TestWorld>& info) {
  return info.param.name;
}

}  // namespace strata::test
