// Where gradients rest when the budgets decide.
#include "layout/gradient_homes.hpp"

#include <gtest/gtest.h>

namespace strata::test {
namespace {

constexpr TierFractions kHost{0, 1, 0};
constexpr TierFractions kDevice{1, 0, 0};
constexpr TierFractions kNvme{0, 0, 1};
constexpr std::uint64_t kElems = 64 * kBlockElems;

class GradientHomes : public testing::Test {
 protected:
  GradientHomes() {
    model_.add_unit("block", {{"w", {kElems}}});
    config_.placement = {.param = kHost, .grad = {0, 0, 0, true}, .optimizer = kNvme};
    config_.budgets = {.device = 8_GiB, .host = 8_GiB, .nvme = 8_GiB};
    config_.nvme.directories = {"/nvme"};
    config_.engine.tile = 256_KiB;
  }

  StateTable table() const {
    return make_state_table(UpdateRule::adamw,
                            {.accumulates = config_.engine.max_micro_batches > 1});
  }
  TierFractions homes() const {
    return with_gradient_homes(layout_of(), table(), config_, budgets(), {}).grad;
  }
  Layout layout_of() const { return make_layout(model_, 1); }
  std::array<Bytes, kTierCount> budgets() const {
    return {config_.budgets.device, config_.budgets.host, config_.budgets.nvme};
  }
  // Bytes of a tier with the gradients in `grad`.
  Bytes needed(Tier tier, const TierFractions& grad) const {
    Config::Placement placement = config_.placement;
    placement.grad = grad;
    const Layout layout = layout_of();
    return plan_memory(layout, table(), make_placement(layout, table(), placement, kBlockElems),
                       config_, budgets(), {})
        .total(tier);
  }

  Model model_;
  Config config_;
};

TEST_F(GradientHomes, GivenOnesStay) {
  config_.placement.grad = {0.5, 0.25, 0.25};
  EXPECT_EQ(homes(), (TierFractions{0.5, 0.25, 0.25}));
}

TEST_F(GradientHomes, AreOnTheHostWhereTheyFit) {
  EXPECT_EQ(homes(), kHost);
  config_.budgets.host = needed(Tier::host, kHost);
  EXPECT_EQ(homes(), kHost);
}

TEST_F(GradientHomes, SpillWhatTheHostCannotHold) {
  const Bytes all = needed(Tier::host, kHost);
  // 128 KiB of bf16 gradients a block: half of the 64 blocks have to go, and slabs come with them.
  config_.budgets.host = all - 4_MiB;
  const TierFractions half = homes();
  EXPECT_EQ(half.device, 0);
  EXPECT_LT(half.host, 0.51);
  EXPECT_GT(half.host, 0.3);
  EXPECT_LE(needed(Tier::host, half), config_.budgets.host);
  EXPECT_DOUBLE_EQ(half.device + half.host + half.nvme, 1);
}

TEST_F(GradientHomes, NeedFilesToSpill) {
  config_.budgets.host = needed(Tier::host, kHost) - 1_MiB;
  config_.budgets.nvme = {};
  config_.budgets.device = 1_MiB;
  EXPECT_EQ(homes(), kHost) << "the error must name the host";
  config_.budgets.nvme = 8_GiB;
  config_.budgets.host = 1_MiB;  // not even without gradients
  EXPECT_EQ(homes(), kHost);
}

TEST_F(GradientHomes, AreOnTheDeviceWhereThatSavesCrossings) {
  config_.engine.max_micro_batches = 2;  // 4 bytes once against 2 bytes twice
  EXPECT_EQ(homes(), kHost);
  config_.engine.max_micro_batches = 4;
  EXPECT_EQ(homes(), kDevice);
  config_.budgets.device = needed(Tier::device, kDevice) - 8_MiB;
  const TierFractions split = homes();
  EXPECT_GT(split.device, 0.3);
  EXPECT_LT(split.device, 0.55);
  EXPECT_EQ(split.nvme, 0);
  config_.engine.max_micro_batches = 1;
  config_.budgets.device = 8_GiB;
  config_.placement.param = kDevice;
  config_.placement.optimizer = kDevice;
  EXPECT_EQ(homes(), kDevice);
  // What is updated on the device stays there, and no more.
  config_.placement.optimizer = {0.5, 0, 0.5};
  EXPECT_EQ(homes(), (TierFractions{0.5, 0.5, 0}));
  config_.placement.param = kHost;
  EXPECT_EQ(homes(), kHost);
}

TEST_F(GradientHomes, AreOnTheDeviceWhereNothingElseHasRoom) {
  config_.budgets.host = needed(Tier::host, kHost) - 1_MiB;
  config_.budgets.nvme = {};
  config_.placement.optimizer = kHost;
  config_.budgets.host = needed(Tier::host, kHost) - 1_MiB;
  EXPECT_GT(homes().device, 0.1);
}

}  // namespace
}  // namespace strata::test
