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
  book.follow(book.begin(name, 1, {}) != 0);
  for (const ProgramCall& call : calls) book.record(call);
  return book.end();
}

constexpr ProgramCall kGatherA{CallKind::gather, UnitId{0}};
constexpr ProgramCall kGatherB{CallKind::gather, UnitId{1}};
constexpr ProgramCall kReduceA{CallKind::reduce, UnitId{0}};

TEST(PatternBook, AStepRepeatsWhenEveryCallDoes) {
  PatternBook book({.program = 1, .ahead = 1});
  EXPECT_FALSE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  ASSERT_NE(book.schedule("train", 1), nullptr);
  EXPECT_EQ(book.schedule("train", 1)->calls, (std::vector{kGatherA, kGatherB, kReduceA}));
}

TEST(PatternBook, OneStepThatDeviatesChangesNothing) {
  PatternBook book({.program = 1, .ahead = 1});
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
  PatternBook book({.program = 1, .ahead = 1});
  make_step(book, "train", {kGatherA, kGatherB});
  make_step(book, "train", {kGatherB, kGatherA});
  make_step(book, "train", {kGatherA, kGatherB});
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kGatherA})) << "not in a row";
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kGatherA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherB, kGatherA}));
}

TEST(PatternBook, TellsWhereAStepLeavesItsSchedule) {
  PatternBook book({.program = 1, .ahead = 1});
  make_step(book, "train", {kGatherA, kReduceA});
  book.follow(book.begin("train", 1, {}) != 0);
  EXPECT_FALSE(book.record(kGatherA));
  EXPECT_TRUE(book.follows());
  EXPECT_TRUE(book.record(kGatherB));
  EXPECT_FALSE(book.follows());
  EXPECT_FALSE(book.record(kReduceA)) << "told before";
  EXPECT_TRUE(book.look_ahead().empty());
  book.end();

  book.follow(book.begin("train", 1, {}) != 0);
  book.record(kGatherA);
  book.record(kReduceA);
  EXPECT_TRUE(book.record(kGatherB)) << "one call too many";
}

TEST(PatternBook, BringsEachGatherForwardOnce) {
  constexpr ProgramCall kBegin{CallKind::begin_step, {}};
  PatternBook book({.program = 1, .ahead = 1});
  const auto run = [&](auto&& after_call) {
    book.follow(book.begin("train", 1, {}) != 0);
    for (const ProgramCall& call : {kBegin, kGatherA, kGatherB}) {
      book.record(call);
      after_call();
      if (call.kind == CallKind::gather) book.record_release(call.unit);
    }
    return book.end();
  };
  EXPECT_FALSE(run([] {}));
  std::vector<UnitId> staged;
  std::vector<UnitId> entered;
  EXPECT_TRUE(run([&] {
    const LookAhead next = book.look_ahead();
    staged.insert(staged.end(), next.stage.begin(), next.stage.end());
    entered.insert(entered.end(), next.enter.begin(), next.enter.end());
    EXPECT_TRUE(book.look_ahead().empty()) << "nothing twice";
  }));
  EXPECT_THAT(staged, ElementsAre(UnitId{0}, UnitId{1}));
  EXPECT_THAT(entered, ElementsAre(UnitId{0}, UnitId{1}));
}

TEST(PatternBook, LeasesMayEndElsewhere) {
  PatternBook book({.program = 2, .ahead = 0});
  const auto run = [&](bool late) {
    book.follow(book.begin("train", 1, {}) != 0);
    book.record(kGatherA);
    if (!late) book.record_release(UnitId{0});
    book.record(kGatherB);
    if (late) book.record_release(UnitId{0});
    book.record_release(UnitId{1});
    return book.end();
  };
  run(false);
  EXPECT_TRUE(run(true));
  EXPECT_EQ(book.counters().followed, 1U);
}

TEST(PatternBook, AGatherThatWasSharedIsADeviationWhenNothingIsHeld) {
  PatternBook book({.program = 2, .ahead = 0});
  const auto run = [&](bool holds) {
    book.follow(book.begin("train", 1, {}) != 0);
    book.record(kGatherA);
    if (!holds) book.record_release(UnitId{0});
    const bool left = book.record(kGatherA, holds);
    if (book.follows()) {
      EXPECT_TRUE(book.shares());
    }
    book.end();
    return left;
  };
  EXPECT_FALSE(run(true)) << "nothing to follow";
  EXPECT_FALSE(run(true));
  EXPECT_TRUE(run(false));
  EXPECT_EQ(book.counters().deviations, 1U);
}

TEST(PatternBook, OtherMicroBatchesAreAnotherPattern) {
  PatternBook book({.program = 1, .ahead = 1});
  make_step(book, "train", {kGatherA});
  EXPECT_EQ(book.begin("train", 2, {}), 0U);
  book.record(kGatherB);
  book.end();
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
}

TEST(PatternBook, ManyNamesAreForgotten) {
  PatternBook book({.program = 1, .ahead = 1});
  for (std::size_t i = 0; i < 3 * PatternBook::kMostPatterns; ++i) {
    make_step(book, "step-" + std::to_string(i), {kGatherA});
  }
  EXPECT_EQ(book.schedule("step-0", 1), nullptr);
  EXPECT_FALSE(make_step(book, "step-0", {kGatherA}));
  EXPECT_TRUE(make_step(book, "step-0", {kGatherA}));
}

TEST(PatternBook, WithoutAgreementNothingIsBroughtForward) {
  PatternBook book({.program = 1, .ahead = 1});
  make_step(book, "train", {kGatherA, kGatherB});
  book.begin("train", 1, {});
  book.follow(false);
  EXPECT_FALSE(book.record(kGatherA));
  EXPECT_TRUE(book.look_ahead().empty());
  book.record(kGatherB);
  EXPECT_TRUE(book.end()) << "it repeats all the same";
  EXPECT_EQ(book.counters().followed, 0U);
}

TEST(PatternBook, AStepIsFollowedWithTheSameLeasesHeld) {
  const std::vector held{UnitId{1}};
  PatternBook book({.program = 2, .ahead = 1});
  make_step(book, "train", {kGatherA});
  const auto run = [&] {
    book.follow(book.begin("train", 1, held) != 0);
    book.record(kGatherA);
    book.record_release(UnitId{0});
    return book.end();
  };
  EXPECT_FALSE(run()) << "recorded with nothing held";
  EXPECT_FALSE(run()) << "held twice in a row: the record now";
  EXPECT_TRUE(run());
  EXPECT_EQ(book.counters().followed, 1U);
}

TEST(PatternBook, AFailedCallIsNotKept) {
  PatternBook book({.program = 1, .ahead = 1});
  make_step(book, "train", {kGatherA});
  book.follow(book.begin("train", 1, {}) != 0);
  book.record(kGatherA);
  book.spoil();
  EXPECT_FALSE(book.follows());
  EXPECT_FALSE(book.end());
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
}

TEST(PatternBook, PatternsAreKeptApart) {
  PatternBook book({.program = 1, .ahead = 1});
  make_step(book, "train", {kGatherA});
  EXPECT_FALSE(make_step(book, "eval", {kGatherA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
  EXPECT_EQ(book.schedule("generate", 1), nullptr);
}

TEST(PatternBook, AnAbandonedStepIsForgotten) {
  PatternBook book({.program = 1, .ahead = 1});
  make_step(book, "train", {kGatherA});
  book.begin("train", 1, {});
  book.record(kGatherB);
  book.abandon();
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
}

TEST(PatternBook, AFirstStepNeverRepeatsEvenWithoutCalls) {
  PatternBook book({.program = 1, .ahead = 1});
  EXPECT_FALSE(make_step(book, "train", {}));
  EXPECT_TRUE(make_step(book, "train", {}));
}

TEST(CallKind, HasTheNamesOfTheProgramsCalls) {
  EXPECT_EQ(name_of(CallKind::begin_step), "begin_step");
  EXPECT_EQ(name_of(CallKind::gather), "gather");
  EXPECT_EQ(name_of(CallKind::reduce), "reduce");
  EXPECT_EQ(name_of(CallKind::end_step), "end");
}

}  // namespace
}  // namespace strata::test
