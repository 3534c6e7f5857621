// The bytes that cross between host and GPU, as the GPU's side counts them: those of the table in
// docs/architecture.md ("Bytes that must move"), and what the session says it moved. A gradient
// crosses once.
#include <gtest/gtest.h>

#include "support/simulated_disk.hpp"
#include "support/standin/standin.hpp"
#include "support/test_machine.hpp"
#include "support/toy_program.hpp"

namespace strata::test {
namespace {

struct Setting {
  const char* name;
  TierFractions param, optimizer;  // gradients rest on the host, but with `param` on the device
  std::uint32_t micro_batches;
  double up, down;  // bytes per parameter and step
};

constexpr Setting kSettings[] = {
    {"device", kDevice, kDevice, 1, 0, 0}, {"device_accumulating", kDevice, kDevice, 3, 0, 0},
    {"host", kHost, kHost, 1, 2, 4},       {"host_accumulating", kHost, kHost, 3, 6, 12},
    {"nvme", kNvme, kNvme, 1, 2, 4},       {"nvme_accumulating", kNvme, kNvme, 2, 4, 8},
};

class StandinBytes : public ::testing::TestWithParam<Setting> {};

// A step as a trainer makes it, without its math: gradients stay zero.
void step(Session& session, StreamId stream, std::uint32_t micro_batches) {
  auto step = session.begin_step({.micro_batches = micro_batches, .groups = {}});
  const auto units = static_cast<std::uint32_t>(session.model().units().size());
  for (std::uint32_t m = 0; m < micro_batches; ++m) {
    for (std::uint32_t u = 0; u < units; ++u) {
      const GatherLease lease = session.gather(UnitId{u}, stream);
    }
    for (std::uint32_t u = units; u-- > 0;) {
      const GatherLease lease = session.gather(UnitId{u}, stream);
      GradientLease gradients = session.gradients(UnitId{u}, stream);
      const auto& tensors = session.model().unit(UnitId{u}).tensors;
      for (std::uint32_t t = 0; t < tensors.size(); ++t) {
        static_cast<void>(gradients[TensorId{t}]);
      }
      session.reduce(std::move(gradients), stream);
    }
  }
  EXPECT_TRUE(step.end().updated);
}

TEST_P(StandinBytes, AreThoseOfTheTable) {
  const Setting& setting = GetParam();
  const TierFractions grad = setting.param == kDevice ? kDevice : kHost;
  Config config = toy_config(setting.param, grad, setting.optimizer);
  config.engine.max_micro_batches = setting.micro_batches;
  Model model;
  model.add_unit("a", {{"w", {512, 256}}, {"b", {256}}});
  model.add_unit("b", {{"w", {1024, 300}}});
  model.add_unit("c", {{"w", {100, 100}}, {"v", {64}}});
  TestMachine machine(1);
  Backends backends = machine.backends(Rank{0}, config);
  backends.block_io = std::make_unique<SimulatedDisk>(
      SimulatedDisk::Options{.delivery = SimulatedDisk::Delivery::background});
  Session session = Session::open(model, config, std::move(backends));
  const StreamId stream = session.device().create_stream("compute");
  for (std::uint32_t u = 0; u < model.units().size(); ++u) {
    session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
      std::fill(values.begin(), values.end(), 1.0F);
    });
  }
  step(session, stream, setting.micro_batches);  // a first one, then the one that counts
  const standin::CopiedBytes before = standin::copied();
  const LinkBytes told_before = session.bytes_moved();
  step(session, stream, setting.micro_batches);
  const standin::CopiedBytes after = standin::copied();
  const LinkBytes told = session.bytes_moved() - told_before;

  const Bytes to_host = after.to_host - before.to_host;
  const Bytes to_device = after.to_device - before.to_device;
  EXPECT_EQ(told.device_to_host, to_host);
  EXPECT_EQ(told.host_to_device, to_device);
  const auto elems = static_cast<double>(model.count_elems());
  // Shards are padded to 64 elements; the sums of a gradient on the device are 8 bytes per block.
  constexpr double kPadding = 3 * 64 * 4;
  EXPECT_NEAR(static_cast<double>(to_device.value), setting.down * elems,
              kPadding * setting.down + 1);
  EXPECT_NEAR(static_cast<double>(to_host.value), setting.up * elems, kPadding * setting.up + 512);
}

INSTANTIATE_TEST_SUITE_P(Placements, StandinBytes, ::testing::ValuesIn(kSettings),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace strata::test
