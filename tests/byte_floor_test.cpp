// The table "Bytes that must move" of docs/architecture.md, per parameter and optimizer step.
#include "plan/byte_floor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "layout/layout.hpp"

namespace strata::test {
namespace {

constexpr TierFractions kDevice{1, 0, 0};
constexpr TierFractions kHost{0, 1, 0};
constexpr TierFractions kNvme{0, 0, 1};

// Units without padding on two ranks, so that a rank's share is half of the parameters.
Model even_model() {
  Model model;
  model.add_unit("a", {{"w", {1024, 64}}, {"b", {128}}});
  model.add_unit("b", {{"w", {4096, 64}}});
  return model;
}

ByteFloor per_parameter(const Config::Placement& where, std::uint32_t micro_batches,
                        const Model& model = even_model()) {
  const Layout layout = make_layout(model, 2);
  // A gradient that one reduction completes rests in 16 bits.
  const StateTable table = make_state_table(UpdateRule::adamw, {.accumulates = micro_batches > 1});
  const ByteFloor total =
      byte_floor(layout, table, make_placement(layout, table, where, kBlockElems), micro_batches);
  const double share = static_cast<double>(model.count_elems()) / 2;
  return {total.nvme_read / share, total.nvme_written / share, total.host_to_device / share,
          total.device_to_host / share};
}

void expect_floor(const Config::Placement& where, std::uint32_t g, const ByteFloor& expected) {
  SCOPED_TRACE("micro-batches " + std::to_string(g));
  const ByteFloor found = per_parameter(where, g);
  EXPECT_DOUBLE_EQ(found.nvme_read, expected.nvme_read);
  EXPECT_DOUBLE_EQ(found.nvme_written, expected.nvme_written);
  EXPECT_DOUBLE_EQ(found.host_to_device, expected.host_to_device);
  EXPECT_DOUBLE_EQ(found.device_to_host, expected.device_to_host);
}

TEST(ByteFloor, EverythingOnTheDeviceMovesNothing) {
  for (const std::uint32_t g : {1U, 4U}) expect_floor({kDevice, kDevice, kDevice}, g, {});
}

TEST(ByteFloor, OptimizerOnTheHost) {
  for (const std::uint32_t g : {1U, 4U}) {
    expect_floor({kDevice, kHost, kHost}, g, {.host_to_device = 2, .device_to_host = 2.0 * g});
  }
}

TEST(ByteFloor, ParametersAndOptimizerOnTheHost) {
  for (const std::uint32_t g : {1U, 4U}) {
    expect_floor({kHost, kHost, kHost}, g, {.host_to_device = 4.0 * g, .device_to_host = 2.0 * g});
  }
}

TEST(ByteFloor, OptimizerInFiles) {
  for (const std::uint32_t g : {1U, 4U}) {
    expect_floor(
        {kDevice, kHost, kNvme}, g,
        {.nvme_read = 12, .nvme_written = 12, .host_to_device = 2, .device_to_host = 2.0 * g});
  }
}

TEST(ByteFloor, ParametersAndOptimizerInFiles) {
  for (const std::uint32_t g : {1U, 4U}) {
    expect_floor({kNvme, kHost, kNvme}, g,
                 {.nvme_read = 12 + 4.0 * g,
                  .nvme_written = 14,
                  .host_to_device = 4.0 * g,
                  .device_to_host = 2.0 * g});
  }
}

TEST(ByteFloor, GradientsThatSpillToFiles) {
  // 16 bits once at g = 1; 32 bits at rest otherwise, read again by each later micro-batch and by
  // the update.
  expect_floor(
      {kNvme, kNvme, kNvme}, 1,
      {.nvme_read = 12 + 4 + 2, .nvme_written = 14 + 2, .host_to_device = 4, .device_to_host = 2});
  expect_floor({kNvme, kNvme, kNvme}, 4,
               {.nvme_read = 12 + 16 + 16,
                .nvme_written = 14 + 16,
                .host_to_device = 16,
                .device_to_host = 8});
}

TEST(ByteFloor, GradientsThatAccumulateOnTheDeviceCrossOnce) {
  // In 32 bits, for the update on the host.
  expect_floor({kDevice, kDevice, kHost}, 4, {.host_to_device = 2, .device_to_host = 4});
}

TEST(ByteFloor, FrozenParametersAreGatheredOnly) {
  Model model;
  model.add_unit("a", {{"w", {1024, 64}, false}});
  const ByteFloor found = per_parameter({kNvme, kNvme, kNvme}, 2, model);
  EXPECT_DOUBLE_EQ(found.nvme_read, 8);
  EXPECT_DOUBLE_EQ(found.nvme_written, 0);
  EXPECT_DOUBLE_EQ(found.host_to_device, 8);
  EXPECT_DOUBLE_EQ(found.device_to_host, 0);
}

TEST(ByteFloor, MixedHomesAreTheirWeightedSum) {
  Model model;
  model.add_unit("a", {{"w", {16 * kBlockElems}}});  // 8 blocks a rank
  const ByteFloor found =
      per_parameter({.param = {0.25, 0.25, 0.5}, .grad = kHost, .optimizer = kHost}, 1, model);
  EXPECT_DOUBLE_EQ(found.nvme_read, 0.5 * 4);
  EXPECT_DOUBLE_EQ(found.nvme_written, 0.5 * 2);
  // Gathers from host and files; the new parameter for the part that rests on the device.
  EXPECT_DOUBLE_EQ(found.host_to_device, 0.75 * 4 + 0.25 * 2);
  EXPECT_DOUBLE_EQ(found.device_to_host, 2);
}

}  // namespace
}  // namespace strata::test
