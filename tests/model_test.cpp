#include "strata/model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/error.hpp"

namespace strata::test {
namespace {

using ::testing::HasSubstr;

template <class Call>
void expect_refused(Call&& call, const std::string& unit, const std::string& part) {
  try {
    call();
    FAIL() << "not refused: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.context().unit, unit);
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
  }
}

TEST(Model, NumbersUnitsAndTensorsInOrder) {
  Model model;
  EXPECT_EQ(model.add_unit("a", {{"w", {4, 3}}, {"b", {4}}}), UnitId{0});
  EXPECT_EQ(model.add_unit("b", {{"w", {2, 3, 5}}}), UnitId{1});
  EXPECT_EQ(model.tensor(UnitId{0}, "b"), TensorId{1});
  EXPECT_EQ(model.tensor(UnitId{1}, "w"), TensorId{0});
  EXPECT_EQ(model.count_elems(), 12U + 4U + 30U);
  EXPECT_EQ(model.unit(UnitId{1}).options.reduces_per_micro_batch, 1U);
}

TEST(Model, RefusesWhatItCannotHold) {
  Model model;
  model.add_unit("a", {{"w", {4}}});
  expect_refused([&] { model.add_unit("a", {{"w", {4}}}); }, "a", "already has this unit");
  expect_refused([&] { model.add_unit("b", {}); }, "b", "at least one tensor");
  expect_refused([&] { model.add_unit("b", {{"w", {4}}, {"w", {5}}}); }, "b", "tensor w twice");
  expect_refused([&] { model.add_unit("b", {{"w", {}}}); }, "b", "shape ()");
  expect_refused([&] { model.add_unit("b", {{"w", {3, 0}}}); }, "b", "shape (3, 0)");
  expect_refused(
      [&] {
        model.add_unit("b", {{"w", {1}}}, {.reduces_per_micro_batch = 0});
      },
      "b", "reduces_per_micro_batch");
  expect_refused([&] { static_cast<void>(model.tensor(UnitId{0}, "v")); }, "a",
                 "no tensor named v");
  EXPECT_EQ(model.units().size(), 1U) << "a refused unit was kept";
}

TEST(Model, RefusesTensorsWhoseSizeWouldOverflow) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 24;
  Model model;
  model.add_unit("largest", {{"w", {kHalf, kHalf}}});
  expect_refused([&] { model.add_unit("a", {{"w", {kHalf, kHalf + 1}}}); }, "a", "2^48");
  expect_refused([&] { model.add_unit("a", {{"w", {kHalf, kHalf, kHalf}}}); }, "a", "2^48");
  // 2^64 elements, which wrap to none.
  expect_refused([&] { model.add_unit("a", {{"w", {1ULL << 32, 1ULL << 32}}}); }, "a", "2^48");
}

}  // namespace
}  // namespace strata::test
