// The memory floor against figures worked out by hand from docs/architecture.md.
#include "layout/memory_floor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "strata/error.hpp"

namespace strata::test {
namespace {

using Lines = std::map<std::pair<Tier, std::string>, std::uint64_t>;

Lines lines_of(const MemoryPlan& plan) {
  Lines lines;
  for (const MemoryLine& line : plan.lines) lines[{line.tier, line.what}] += line.size.value;
  return lines;
}

// Two units over two ranks. "big": 100,000 + 1 trainable elements; the tensors begin at 0 and
// 100,096, so 100,097 are used and a shard has round_up(100,097, 128) / 2 = 50,112. "small": 10
// trainable, 64 per shard, and 300 frozen, 192 per shard.
Model two_units() {
  Model model;
  model.add_unit("big", {{"w", {100000}}, {"b", {1}}});
  model.add_unit("small", {{"w", {10}}, {"f", {300}, false}});
  return model;
}

Config config_with(const TierFractions& param, const TierFractions& grad,
                   const TierFractions& optimizer) {
  Config config;
  config.placement = {param, grad, optimizer};
  config.engine.tile = 256_KiB;  // of 65,536 elements
  return config;
}

constexpr TierFractions kDevice{1, 0, 0};
constexpr TierFractions kHost{0, 1, 0};
constexpr TierFractions kNvme{0, 0, 1};
constexpr std::array<Bytes, kTierCount> kPlenty{1_GiB, 1_GiB, 1_GiB};

MemoryPlan plan_for(const Config& config, const StateTable& table,
                    const std::array<Bytes, kTierCount>& budgets = kPlenty,
                    const MemoryExtras& extras = {}) {
  const Layout layout = make_layout(two_units(), 2);
  const std::uint64_t tile_elems = config.engine.tile / Bytes{4};
  return plan_memory(layout, table, make_placement(layout, table, config.placement, tile_elems),
                     config, budgets, extras);
}

// Pieces on the device and the host are rounded up to 256 bytes.
constexpr std::uint64_t kBig = 50112;
constexpr std::uint64_t kBig16 = 100352;  // 2 x 50,112 = 100,224
constexpr std::uint64_t kBig32 = 200448;  // 4 x 50,112 = 783 x 256

TEST(MemoryFloor, EverythingOnTheDevice) {
  const MemoryPlan plan =
      plan_for(config_with(kDevice, kDevice, kDevice), make_state_table(UpdateRule::adamw, {}));
  const Lines expected{
      {{Tier::device, "param at rest"},
       kBig16 + 256 + 512},  // small: 128 -> 256; frozen: 384 -> 512
      {{Tier::device, "grad at rest"}, kBig16 + 256},
      {{Tier::device, "master at rest"}, kBig32 + 256},
      {{Tier::device, "moment1 at rest"}, kBig32 + 256},
      {{Tier::device, "moment2 at rest"}, kBig32 + 256},
      {{Tier::device, "gathers: 2 x big"}, 2 * 200448},  // 2 ranks x 50,112 x 2 bytes = 783 x 256
      {{Tier::device, "gradient buffer: big"}, 200448},
      {{Tier::device, "gradient sums"}, 512},  // a block and a flag for each of two tiles
      {{Tier::host, "staging: checkpoint"}, 3 * 262144},
      {{Tier::host, "gradient sums"}, 512}};
  EXPECT_EQ(lines_of(plan), expected);
  static_assert(2 * kBig * 2 == 200448);
}

TEST(MemoryFloor, EverythingInFiles) {
  const MemoryPlan plan = plan_for(config_with(kNvme, kNvme, kNvme),
                                   make_state_table(UpdateRule::adamw, {.accumulates = true}));
  // Extents are rounded up to 4096 bytes.
  const Lines expected{{{Tier::nvme, "param at rest"}, 102400 + 4096 + 4096},
                       {{Tier::nvme, "grad at rest"}, 200704 + 4096},
                       {{Tier::nvme, "master at rest"}, 200704 + 4096},
                       {{Tier::nvme, "moment1 at rest"}, 200704 + 4096},
                       {{Tier::nvme, "moment2 at rest"}, 200704 + 4096},
                       {{Tier::device, "gathers: 2 x big"}, 2 * 200448},
                       {{Tier::device, "gradient buffer: big"}, 200448},
                       {{Tier::host, "staging: gather"}, 3 * 262144},
                       // What arrived and what it is added to.
                       {{Tier::host, "staging: gradient"}, 3 * 2 * 262144},
                       {{Tier::host, "staging: update"}, 3 * 5 * 262144},
                       {{Tier::host, "staging: checkpoint"}, 3 * 262144},
                       {{Tier::host, "gradient sums"}, 512}};
  EXPECT_EQ(lines_of(plan), expected);
}

TEST(MemoryFloor, OptimizerOnTheHostStagesWhatRestsElsewhere) {
  Config config = config_with(kDevice, kHost, kHost);
  config.engine.max_live_units = 3;
  config.outside = {.device = Bytes{1000}, .host = Bytes{2000}};
  const MemoryPlan plan = plan_for(
      config, make_state_table(UpdateRule::adamw, {.accumulates = true}), kPlenty,
      {.device_scratch = Bytes{1}, .host_scratch = Bytes{257}, .communicator_staging = Bytes{99}});
  const Lines lines = lines_of(plan);
  EXPECT_EQ(lines.at({Tier::device, "gathers: 3 x big"}), 3U * 200448);
  EXPECT_EQ(lines.at({Tier::device, "scratch"}), 256U);
  EXPECT_EQ(lines.at({Tier::device, "outside"}), 1000U);
  EXPECT_EQ(lines.at({Tier::host, "scratch"}), 512U);
  EXPECT_EQ(lines.at({Tier::host, "outside"}), 2000U);
  EXPECT_EQ(lines.at({Tier::host, "communicator windows"}), 99U);
  EXPECT_EQ(lines.at({Tier::host, "staging: gradient"}), 3U * 262144);  // 16 bits arrive, 32 rest
  EXPECT_EQ(lines.at({Tier::host, "staging: update"}), 3U * 262144);    // the parameter only
  EXPECT_FALSE(lines.contains({Tier::host, "staging: gather"}));
  EXPECT_FALSE(lines.contains({Tier::device, "gradient sums"}));
}

TEST(MemoryFloor, AGradientOf16BitsLandsOnTheHostWithoutStaging) {
  const Lines lines = lines_of(
      plan_for(config_with(kDevice, kHost, kHost), make_state_table(UpdateRule::adamw, {})));
  EXPECT_FALSE(lines.contains({Tier::host, "staging: gradient"}));
  EXPECT_EQ(lines.at({Tier::host, "grad at rest"}), kBig16 + 256U);
}

TEST(MemoryFloor, TotalsAddUpByTierAndPurpose) {
  const MemoryPlan plan =
      plan_for(config_with(kDevice, kHost, kNvme), make_state_table(UpdateRule::adamw, {}));
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    std::uint64_t sum = 0;
    for (const auto& [key, size] : lines_of(plan)) sum += key.first == tier ? size : 0;
    EXPECT_EQ(plan.total(tier).value, sum);
  }
  EXPECT_EQ(plan.total(Tier::nvme, MemoryPurpose::at_rest).value, 3U * (200704 + 4096));
  EXPECT_EQ(plan.total(Tier::host, MemoryPurpose::scratch), 0_B);
}

TEST(MemoryFloor, OneByteDecides) {
  const Config config = config_with(kDevice, kHost, kNvme);
  const StateTable table = make_state_table(UpdateRule::adamw, {});
  const MemoryPlan plan = plan_for(config, table);
  const std::array<Bytes, kTierCount> exact{plan.total(Tier::device), plan.total(Tier::host),
                                            plan.total(Tier::nvme)};
  EXPECT_NO_THROW(plan_for(config, table, exact).require_fit());
  for (std::size_t t = 0; t < kTierCount; ++t) {
    auto smaller = exact;
    smaller[t] -= 1_B;
    const MemoryPlan refused = plan_for(config, table, smaller);
    EXPECT_FALSE(refused.fits());
    try {
      refused.require_fit();
      FAIL() << "a byte less was accepted";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), ErrorCode::budget_exceeded);
      EXPECT_EQ(text.find(std::string(name_of(static_cast<Tier>(t))) + " budget"), 0U) << text;
      EXPECT_THAT(text, ::testing::HasSubstr("smallest that works is"));
      EXPECT_THAT(text, ::testing::HasSubstr("(" + std::to_string(exact[t].value) + " bytes)"));
      EXPECT_EQ(text.find('\n'), std::string::npos);
    }
  }
}

TEST(MemoryFloor, TheRefusalNamesEveryTierAndItsLines) {
  const MemoryPlan plan = plan_for(config_with(kDevice, kHost, kNvme),
                                   make_state_table(UpdateRule::adamw, {}), {1_KiB, 1_KiB, 1_KiB});
  try {
    plan.require_fit();
    FAIL();
  } catch (const Error& error) {
    for (const char* part : {"device budget 1 KiB (1024 bytes) is too small", "; host budget",
                             "; nvme budget", "gathers: 2 x big", "master at rest"}) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  }
}

TEST(MemoryFloor, SumsOfATile) {
  const auto bytes = [](std::uint64_t elems) {
    return gradient_sums_bytes(Tile{.count_elems = elems}).value;
  };
  EXPECT_EQ(bytes(1), 16U);
  EXPECT_EQ(bytes(65536), 16U);
  EXPECT_EQ(bytes(65537), 24U);
}

}  // namespace
}  // namespace strata::test
