#include "plan/pattern.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace strata::test {
namespace {

bool make_step(PatternBook& book, const std::string& name,
               std::initializer_list<ProgramCall> calls) {
  book.begin(name);
  for (const ProgramCall& call : calls) book.record(call);
  return book.end();
}

constexpr ProgramCall kGatherA{CallKind::gather, UnitId{0}};
constexpr ProgramCall kGatherB{CallKind::gather, UnitId{1}};
constexpr ProgramCall kReduceA{CallKind::reduce, UnitId{0}};

TEST(PatternBook, AStepRepeatsWhenEveryCallDoes) {
  PatternBook book;
  EXPECT_FALSE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA, kGatherB, kReduceA}));
  ASSERT_NE(book.recorded("train"), nullptr);
  EXPECT_EQ(*book.recorded("train"), (std::vector<ProgramCall>{kGatherA, kGatherB, kReduceA}));
}

TEST(PatternBook, AStepThatDeviatesBecomesTheRecord) {
  PatternBook book;
  make_step(book, "train", {kGatherA, kGatherB});
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kGatherA})) << "another order";
  EXPECT_TRUE(make_step(book, "train", {kGatherB, kGatherA}));
  EXPECT_FALSE(make_step(book, "train", {kGatherB})) << "fewer calls";
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kReduceA})) << "more calls";
  EXPECT_FALSE(make_step(book, "train", {kGatherB, kGatherA})) << "another kind";
}

TEST(PatternBook, PatternsAreKeptApart) {
  PatternBook book;
  make_step(book, "train", {kGatherA});
  EXPECT_FALSE(make_step(book, "eval", {kGatherA}));
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
  EXPECT_EQ(book.recorded("generate"), nullptr);
}

TEST(PatternBook, AnAbandonedStepIsForgotten) {
  PatternBook book;
  make_step(book, "train", {kGatherA});
  book.begin("train");
  book.record(kGatherB);
  EXPECT_EQ(book.calls_so_far(), 1U);
  book.abandon();
  EXPECT_EQ(book.calls_so_far(), 0U);
  EXPECT_TRUE(make_step(book, "train", {kGatherA}));
}

TEST(PatternBook, AFirstStepNeverRepeatsEvenWithoutCalls) {
  PatternBook book;
  EXPECT_FALSE(make_step(book, "train", {}));
  EXPECT_TRUE(make_step(book, "train", {}));
}

TEST(CallKind, HasTheNamesOfTheProgramsCalls) {
  EXPECT_EQ(name_of(CallKind::begin_step), "begin_step");
  EXPECT_EQ(name_of(CallKind::gather), "gather");
  EXPECT_EQ(name_of(CallKind::gradients), "gradients");
  EXPECT_EQ(name_of(CallKind::reduce), "reduce");
  EXPECT_EQ(name_of(CallKind::end_step), "end");
}

}  // namespace
}  // namespace strata::test
