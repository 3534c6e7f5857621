#include "layout/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "support/random_model.hpp"

namespace strata::test {
namespace {

constexpr std::array kTiers{Tier::device, Tier::host, Tier::nvme};

double fraction_of(const TierFractions& fractions, Tier tier) {
  switch (tier) {
    case Tier::device: return fractions.device;
    case Tier::host: return fractions.host;
    case Tier::nvme: return fractions.nvme;
  }
  return 0;
}

const TierFractions& fractions_of(const Config::Placement& placement, KindId kind) {
  if (kind == kParamKind) return placement.param;
  return kind == kGradKind ? placement.grad : placement.optimizer;
}

// Some tiers may get nothing; together 1 within rounding, as the configuration checks it.
TierFractions random_fractions(RandomStream& random) {
  std::array<double, 3> parts{};
  double sum = 0;
  while (sum == 0) {
    for (double& part : parts) part = random.below(3) == 0 ? 0 : random.uniform();
    sum = parts[0] + parts[1] + parts[2];
  }
  return {parts[0] / sum, parts[1] / sum, parts[2] / sum};
}

// Tiles follow each other, cover the shard, begin at block borders and respect the limit.
void check_tiles(const Segment& segment, const std::vector<Tile>& tiles, std::uint64_t limit) {
  std::uint64_t at = 0;
  for (const Tile& tile : tiles) {
    ASSERT_EQ(tile.begin_elems, at);
    ASSERT_GT(tile.count_elems, 0U);
    ASSERT_LE(tile.count_elems, limit);
    ASSERT_EQ(tile.begin_elems % kBlockElems, 0U);
    at += tile.count_elems;
  }
  ASSERT_EQ(at, segment.shard_elems);
}

double elems_in(const Layout& layout, const Placement& placement, KindId kind, Tier tier) {
  double sum = 0;
  for (std::size_t s = 0; s < layout.segments.size(); ++s) {
    if (kind != kParamKind && !layout.segments[s].trainable) continue;
    for (const Tile& tile : placement.tiles[s]) {
      if (tile.home(kind) == tier) sum += static_cast<double>(tile.count_elems);
    }
  }
  return sum;
}

// Each tier holds its fraction of the whole model, to one block; without a fraction it is empty.
void check_shares(const Layout& layout, const StateTable& table, const Placement& placement,
                  const Config::Placement& wanted) {
  for (std::uint32_t k = 0; k < table.size(); ++k) {
    const KindId kind{k};
    double all = 0;
    for (const Tier tier : kTiers) all += elems_in(layout, placement, kind, tier);
    for (const Tier tier : kTiers) {
      const double fraction = fraction_of(fractions_of(wanted, kind), tier);
      const double here = elems_in(layout, placement, kind, tier);
      if (fraction == 0) {
        ASSERT_EQ(here, 0) << table.kinds[k].name << " in " << name_of(tier);
      }
      ASSERT_LE(std::abs(here - fraction * all), static_cast<double>(kBlockElems))
          << table.kinds[k].name << " in " << name_of(tier) << ", fraction " << fraction;
      if (all > 0) {
        ASSERT_DOUBLE_EQ(share_of(layout, placement, kind, tier), here / all);
      }
    }
  }
}

TEST(Placement, TilesPartitionEveryShardAndMeetTheFractions) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed + 1000);
    const Model model = random_model(seed, seed % 3 == 0 ? 24 : 1500);
    const auto ranks = static_cast<std::uint32_t>(1 + random.below(5));
    const Layout layout = make_layout(model, ranks);
    const StateTable table = make_state_table(
        UpdateRule::adamw, {.param = random.below(2) == 0 ? DType::bf16 : DType::fp32});
    const Config::Placement wanted{.param = random_fractions(random),
                                   .grad = random_fractions(random),
                                   .optimizer = random_fractions(random)};
    const std::uint64_t limit = kBlockElems << random.below(4);
    const Placement placement = make_placement(layout, table, wanted, limit);
    ASSERT_EQ(placement.tiles.size(), layout.segments.size());
    for (std::size_t s = 0; s < layout.segments.size(); ++s) {
      check_tiles(layout.segments[s], placement.tiles[s], limit);
    }
    check_shares(layout, table, placement, wanted);
  }
}

// Where two tiers share everything and cuts move to borders, the short last block of a shard must
// not fall to the third: it may have no budget and no directory.
TEST(Placement, ATierWithoutAFractionGetsNothing) {
  for (std::uint64_t extra = 64; extra < kBlockElems; extra += 4096) {
    for (const double device : {0.1, 0.3, 0.45, 0.7, 0.9}) {
      Model model;
      for (const char* name : {"a", "b", "c"}) {
        model.add_unit(name, {{"w", {2 * kBlockElems + extra}}});
      }
      const Layout layout = make_layout(model, 1);
      const StateTable table = make_state_table(UpdateRule::adamw, {});
      const TierFractions fractions{device, 1 - device, 0};
      const Placement placement =
          make_placement(layout, table, {fractions, fractions, fractions}, 4 * kBlockElems);
      for (std::uint32_t k = 0; k < table.size(); ++k) {
        ASSERT_EQ(share_of(layout, placement, KindId{k}, Tier::nvme), 0)
            << "device " << device << ", extra " << extra;
      }
    }
  }
}

TEST(Placement, OneTierForEachGroupOfKinds) {
  Model model;
  model.add_unit("a", {{"w", {1000}}, {"frozen", {1000}, false}});
  const Layout layout = make_layout(model, 2);
  const StateTable table = make_state_table(UpdateRule::adamw, {});
  const Placement placement = make_placement(
      layout, table, {.param = {0, 1, 0}, .grad = {1, 0, 0}, .optimizer = {0, 0, 1}}, kBlockElems);
  ASSERT_EQ(placement.tiles.size(), 2U);
  ASSERT_EQ(placement.tiles[0].size(), 1U);
  const Tile& tile = placement.tiles[0][0];
  EXPECT_EQ(tile.home(kParamKind), Tier::host);
  EXPECT_EQ(tile.home(kGradKind), Tier::device);
  for (std::uint32_t k = 2; k < table.size(); ++k) EXPECT_EQ(tile.home(KindId{k}), Tier::nvme);
  EXPECT_EQ(placement.tiles[1].at(0).home(kParamKind), Tier::host);
  EXPECT_EQ(Placement::kinds_of(layout.segments[0], table), 5U);
  EXPECT_EQ(Placement::kinds_of(layout.segments[1], table), 1U);
}

TEST(Placement, ACutMakesTwoTilesAtABlockBorder) {
  Model model;
  model.add_unit("a", {{"w", {4 * kBlockElems}}});
  const Layout layout = make_layout(model, 1);
  const TierFractions device{1, 0, 0};
  const Placement placement = make_placement(layout, make_state_table(UpdateRule::adamw, {}),
                                             {device, device, {0.3, 0.7, 0}}, 4 * kBlockElems);
  ASSERT_EQ(placement.tiles[0].size(), 2U);
  EXPECT_EQ(placement.tiles[0][0].count_elems, kBlockElems);
  EXPECT_EQ(placement.tiles[0][0].home(KindId{2}), Tier::device);
  EXPECT_EQ(placement.tiles[0][1].home(KindId{2}), Tier::host);
  EXPECT_EQ(placement.tiles[0][1].home(kParamKind), Tier::device);
}

TEST(StateTable, RowsFollowThePrecision) {
  const auto names = [](const StateTable& table) {
    std::string text;
    for (const StateKind& kind : table.kinds) {
      text += kind.name + ":" + std::string(name_of(kind.dtype)) + " ";
    }
    return text;
  };
  EXPECT_EQ(names(make_state_table(UpdateRule::adamw, {})),
            "param:bf16 grad:bf16 master:fp32 moment1:fp32 moment2:fp32 ");
  EXPECT_EQ(names(make_state_table(UpdateRule::adamw, {.accumulates = true})),
            "param:bf16 grad:fp32 master:fp32 moment1:fp32 moment2:fp32 ");
  const StateTable wide =
      make_state_table(UpdateRule::adamw, {.param = DType::fp32, .wire = DType::bf16});
  EXPECT_EQ(names(wide), "param:fp32 grad:bf16 moment1:fp32 moment2:fp32 ");
  EXPECT_EQ(wide.master, kParamKind);
  EXPECT_EQ(wide.wire, DType::bf16);
}

}  // namespace
}  // namespace strata::test
