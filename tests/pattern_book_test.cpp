#include "plan/pattern_book.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace strata::test {
namespace {

using ::testing::ElementsAre;

bool make_step(PatternBook& book, const std::string& name,
               std::initializer_list<ProgramCall> calls) {
  book.follow(book.begin(name) != 0);
  for (const ProgramCall& call : calls) book.record(call);
  return book.end();
}

constexpr ProgramCall kGatherA{CallKind::gather, UnitId{0}};
constexpr ProgramCall kGatherB{CallKind::gather, UnitId{1}};
constexpr ProgramCall kReduceA{CallKind::reduce, UnitId{0}};

TEST(PatternBook, AStepRepeatsWhenEveryCallDoes) {
  PatternBook book(2);
  EXPECT_FALSE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  ASSERT_NE(book.schedule("train"), nullptr);
  EXPECT_EQ(book.schedule("train")->calls, (std::vector{kGatherA, kGatherB, kReduceA}));
}

TEST(PatternBook, OneStepThatDeviatesChangesNothing) {
  PatternBook book(2);
  make_step(book, "train", {kGatherA, kGatherB});
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kGatherA})) << "another order";
  EXPECT_FALSE(make_step(book, "train", {kGatherB})) << "fewer calls";
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kReduceA})) << "more calls";
  EXPECT_TRUE(make_step(book, "train", {kGatherA, kGatherB}));
  EXPECT_EQ(book.counters().steps, 5U);
  EXPECT_EQ(book.counters().followed, 1U);
  EXPECT_EQ(book.counters().deviations, 3U);
}

TEST(PatternBook, TwoEqualDeviationsInARowBecomeTheRecord) {
  PatternBook book(2);
  make_step(book, "train", {kGatherA, kGatherB});
  make_step(book, "train", {kGatherB, kGatherA});
  make_step(book, "train", {kGatherA, kGatherB});
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kGatherA})) << "not in a row";
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kGatherA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherB, kGatherA}));
}

TEST(PatternBook, TellsWhereAStepLeavesItsSchedule) {
  PatternBook book(2);
  make_step(book, "train", {kGatherA, kReduceA});
  book.follow(book.begin("train") != 0);
  EXPECT_FALSE(book.record(kGatherA));
  EXPECT_TRUE(book.follows());
  EXPECT_TRUE(book.record(kGatherB));
  EXPECT_FALSE(book.follows());
  EXPECT_FALSE(book.record(kReduceA)) << "told before";
  EXPECT_TRUE(book.look_ahead().empty());
  book.end();

  book.follow(book.begin("train") != 0);
  book.record(kGatherA);
  book.record(kReduceA);
  EXPECT_TRUE(book.record(kGatherB)) << "one call too many";
}

TEST(PatternBook, BringsEachGatherForwardOnce) {
  constexpr ProgramCall kBegin{CallKind::begin_step, {}};
  constexpr ProgramCall kReleaseA{CallKind::release, UnitId{0}};
  constexpr ProgramCall kReleaseB{CallKind::release, UnitId{1}};
  const std::vector calls{kBegin, kGatherA, kReleaseA, kGatherB, kReleaseB};
  PatternBook book(2);
  make_step(book, "train", {kBegin, kGatherA, kReleaseA, kGatherB, kReleaseB});
  book.follow(book.begin("train") != 0);
  std::vector<UnitId> staged;
  std::vector<UnitId> entered;
  for (const ProgramCall& call : calls) {
    book.record(call);
    const LookAhead next = book.look_ahead();
    staged.insert(staged.end(), next.stage.begin(), next.stage.end());
    entered.insert(entered.end(), next.enter.begin(), next.enter.end());
    EXPECT_TRUE(book.look_ahead().empty()) << "nothing twice";
  }
  EXPECT_THAT(staged, ElementsAre(UnitId{0}, UnitId{1}));
  EXPECT_THAT(entered, ElementsAre(UnitId{0}, UnitId{1}));
}

TEST(PatternBook, WithoutAgreementNothingIsBroughtForward) {
  PatternBook book(2);
  make_step(book, "train", {kGatherA, kGatherB});
  book.begin("train");
  book.follow(false);
  EXPECT_FALSE(book.record(kGatherA));
  EXPECT_TRUE(book.look_ahead().empty());
  book.record(kGatherB);
  EXPECT_TRUE(book.end()) << "it repeats all the same";
  EXPECT_EQ(book.counters().followed, 0U);
}

TEST(PatternBook, AStepThatIsNotWholeIsNeitherFollowedNorKept) {
  PatternBook book(2);
  EXPECT_EQ(book.begin("train", false), 0U);
  book.record(kGatherA);
  EXPECT_FALSE(book.end());
  EXPECT_EQ(book.schedule("train"), nullptr);
  make_step(book, "train", {kGatherA});
  EXPECT_EQ(book.begin("train", false), 0U) << "leases of before are held";
  book.follow(true);
  EXPECT_FALSE(book.follows());
  book.end();
  EXPECT_NE(book.begin("train"), 0U);
  book.record(kGatherA);
  book.spoil();
  EXPECT_FALSE(book.end());
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
}

TEST(PatternBook, PatternsAreKeptApart) {
  PatternBook book(2);
  make_step(book, "train", {kGatherA});
  EXPECT_FALSE(make_step(book, "eval", {kGatherA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
  EXPECT_EQ(book.schedule("generate"), nullptr);
}

TEST(PatternBook, AnAbandonedStepIsForgotten) {
  PatternBook book(2);
  make_step(book, "train", {kGatherA});
  book.begin("train");
  book.record(kGatherB);
  EXPECT_EQ(book.calls_so_far(), 1U);
  book.abandon();
  EXPECT_EQ(book.calls_so_far(), 0U);
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
}

TEST(PatternBook, AFirstStepNeverRepeatsEvenWithoutCalls) {
  PatternBook book(2);
  EXPECT_FALSE(make_step(book, "train", {}));
  EXPECT_TRUE(make_step(book, "train", {}));
}

TEST(CallKind, HasTheNamesOfTheProgramsCalls) {
  EXPECT_EQ(name_of(CallKind::begin_step), "begin_step");
  EXPECT_EQ(name_of(CallKind::gather), "gather");
  EXPECT_EQ(name_of(CallKind::release), "release");
  EXPECT_EQ(name_of(CallKind::gradients), "gradients");
  EXPECT_EQ(name_of(CallKind::reduce), "reduce");
  EXPECT_EQ(name_of(CallKind::end_step), "end");
}

}  // namespace
}  // namespace strata::test
