// The slice layout against its definition, worked out element by element.
#include "layout/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/random_model.hpp"

namespace strata::test {
namespace {

struct Element {
  std::uint32_t tensor = 0;
  std::uint64_t index = 0;
  bool operator==(const Element&) const = default;
};

// What stands at every position of a segment; nothing where it is padding.
using Flat = std::vector<std::optional<Element>>;

// The definition: tensors one after the other, each at the next multiple of 128, then padding up to
// the ranks' equal shards, which are multiples of 64.
Flat flatten(const UnitSpec& unit, bool trainable, std::uint32_t ranks) {
  Flat flat;
  for (std::uint32_t t = 0; t < unit.tensors.size(); ++t) {
    if (unit.tensors[t].trainable != trainable) continue;
    while (flat.size() % 128 != 0) flat.emplace_back();
    for (std::uint64_t i = 0; i < unit.tensors[t].count_elems(); ++i) {
      flat.emplace_back(Element{t, i});
    }
  }
  while (flat.size() % (std::size_t{64} * ranks) != 0) flat.emplace_back();
  return flat;
}

// What tensor_parts() says about elements [begin, end) of a shard, in the same form.
Flat expand(const Segment& segment, Rank rank, std::uint64_t begin, std::uint64_t end) {
  Flat flat(end - begin);
  for (const TensorPart& part : tensor_parts(segment, rank, begin, end)) {
    EXPECT_GT(part.count_elems, 0U);
    for (std::uint64_t i = 0; i < part.count_elems; ++i) {
      auto& place = flat.at(part.offset_in_range_elems + i);
      EXPECT_FALSE(place.has_value()) << "two parts overlap";
      place = Element{part.tensor.tensor.value, part.offset_in_tensor_elems + i};
    }
  }
  return flat;
}

// Segments of a unit, trainable first, as (trainable, content).
std::vector<std::pair<bool, Flat>> expected_segments(const UnitSpec& unit, std::uint32_t ranks) {
  std::vector<std::pair<bool, Flat>> segments;
  for (const bool trainable : {true, false}) {
    Flat flat = flatten(unit, trainable, ranks);
    if (!flat.empty()) segments.emplace_back(trainable, std::move(flat));
  }
  return segments;
}

void check_segment(const Segment& segment, const Flat& expected, std::uint32_t ranks) {
  ASSERT_EQ(segment.shard_elems * ranks, expected.size());
  const auto last = std::find_if(expected.rbegin(), expected.rend(),
                                 [](const auto& place) { return place.has_value(); });
  const auto used = static_cast<std::uint64_t>(expected.rend() - last);
  EXPECT_EQ(segment.used_elems, used);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const auto shard = expected.begin() + static_cast<std::ptrdiff_t>(r * segment.shard_elems);
    const Flat theirs(shard, shard + static_cast<std::ptrdiff_t>(segment.shard_elems));
    ASSERT_EQ(expand(segment, Rank{r}, 0, segment.shard_elems), theirs) << "rank " << r;
    const std::uint64_t begin = r * segment.shard_elems;
    EXPECT_EQ(segment.true_elems(Rank{r}),
              used > begin ? std::min(used - begin, segment.shard_elems) : 0U);
  }
}

TEST(Layout, EveryElementStandsOnExactlyOneRankAsDefined) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Model model = random_model(seed);
    for (std::uint32_t ranks = 1; ranks <= 9; ++ranks) {
      SCOPED_TRACE("ranks " + std::to_string(ranks));
      const Layout layout = make_layout(model, ranks);
      ASSERT_EQ(layout.units.size(), model.units().size());
      for (std::uint32_t u = 0; u < model.units().size(); ++u) {
        const auto expected = expected_segments(model.units()[u], ranks);
        const auto found = layout.segments_of(UnitId{u});
        ASSERT_EQ(found.size(), expected.size());
        EXPECT_EQ(layout.units[u].name, model.units()[u].name);
        for (std::size_t i = 0; i < found.size(); ++i) {
          const Segment& segment = layout.segments[found[i]];
          EXPECT_EQ(segment.unit, UnitId{u});
          EXPECT_EQ(segment.trainable, expected[i].first);
          check_segment(segment, expected[i].second, ranks);
        }
      }
    }
  }
}

TEST(Layout, PartsOfARangeArePartsOfTheShard) {
  for (std::uint64_t seed = 100; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Layout layout = make_layout(random_model(seed), 3);
    RandomStream random(seed);
    for (const Segment& segment : layout.segments) {
      for (int i = 0; i < 20; ++i) {
        const std::uint64_t begin = random.below(segment.shard_elems + 1);
        const std::uint64_t end = begin + random.below(segment.shard_elems - begin + 1);
        const Rank rank{static_cast<std::uint32_t>(random.below(3))};
        const Flat whole = expand(segment, rank, 0, segment.shard_elems);
        const Flat expected(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                            whole.begin() + static_cast<std::ptrdiff_t>(end));
        ASSERT_EQ(expand(segment, rank, begin, end), expected)
            << "[" << begin << ", " << end << ")";
      }
    }
  }
}

TEST(Layout, AToyLayerOverFourRanks) {
  Model model;
  const UnitId unit = model.add_unit("A", {{"w", {5, 3}}, {"b", {5}}});
  const Layout layout = make_layout(model, 4);
  ASSERT_EQ(layout.segments.size(), 1U);
  const Segment& segment = layout.segments[0];
  EXPECT_EQ(segment.used_elems, 133U);
  EXPECT_EQ(segment.shard_elems, 64U);
  EXPECT_EQ(tensor_parts(segment, Rank{0}, 0, 64).at(0).count_elems, 15U);
  EXPECT_TRUE(tensor_parts(segment, Rank{1}, 0, 64).empty());
  EXPECT_EQ(tensor_parts(segment, Rank{2}, 0, 64).at(0).count_elems, 5U);
  EXPECT_TRUE(tensor_parts(segment, Rank{3}, 0, 64).empty());
  // A hole between tensors counts as used, an empty shard does not.
  EXPECT_EQ(segment.true_elems(Rank{1}), 64U);
  EXPECT_EQ(segment.true_elems(Rank{2}), 5U);
  EXPECT_EQ(segment.true_elems(Rank{3}), 0U);
  const auto [index, range] = layout.locate(unit, TensorId{1});
  EXPECT_EQ(index, 0U);
  EXPECT_EQ(range.begin_elems, 128U);
  EXPECT_EQ(range.count_elems, 5U);
}

TEST(Layout, FrozenTensorsFormTheSecondSegment) {
  Model model;
  const UnitId unit =
      model.add_unit("a", {{"base", {300}, false}, {"lora", {8}, true, 2}, {"base2", {10}, false}});
  const Layout layout = make_layout(model, 2);
  const auto segments = layout.segments_of(unit);
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_TRUE(layout.segments[segments[0]].trainable);
  EXPECT_EQ(layout.segments[segments[0]].tensors.at(0).group, 2U);
  EXPECT_FALSE(layout.segments[segments[1]].trainable);
  EXPECT_EQ(layout.locate(unit, TensorId{2}).first, segments[1]);
  EXPECT_EQ(layout.locate(unit, TensorId{2}).second.begin_elems, 384U);
}

}  // namespace
}  // namespace strata::test
