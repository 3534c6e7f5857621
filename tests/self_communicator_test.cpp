#include "self/self_communicator.hpp"

#include "communicator_conformance.hpp"
#include "cpu/cpu_device.hpp"

namespace strata::test {
namespace {

void run_alone(const RankTest& test) {
  CpuDevice device({.arena = kTestArena});
  const auto communicator = create_self_communicator();
  communicator->attach(device);
  RankContext context{*communicator, device};
  test(context);
}

INSTANTIATE_TEST_SUITE_P(Self, CommunicatorConformance,
                         testing::Values(TestWorld{"self", run_alone}), name_of_world);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorFailures);

TEST(SelfCommunicator, ReduceScatterLeavesTheBufferUntouched) {
  CpuDevice device({.arena = 1_MiB});
  const auto communicator = create_self_communicator();
  communicator->attach(device);
  const StreamId stream = device.create_stream("test");
  // A signalling NaN would change if anything were computed.
  std::uint16_t bits[3] = {0x7F81, 0x8000, 0x3F80};
  std::byte* const data = device.arena().data();
  device.copy(stream, data, bits, Bytes{sizeof(bits)}, CopyKind::host_to_device);
  const ShardedBuffer buffer{data, 3, DType::bf16};
  communicator->reduce_scatter(stream, {&buffer, 1});
  std::uint16_t after[3] = {};
  device.copy(stream, after, data, Bytes{sizeof(after)}, CopyKind::device_to_host);
  device.synchronize(device.record(stream));
  EXPECT_TRUE(std::equal(bits, bits + 3, after));
}

}  // namespace
}  // namespace strata::test
