// Schedules: hand-made ones for small steps, and rules that hold for random steps.
#include "plan/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.hpp"
#include "strata/clock.hpp"

namespace strata::test {
namespace {

using ::testing::ElementsAre;

constexpr GatherSlots kOne{.program = 1, .ahead = 0};
constexpr GatherSlots kOneAhead{.program = 1, .ahead = 1};

// A step, call by call.
class Steps {
 public:
  Steps& gather(std::uint32_t unit) { return add({CallKind::gather, UnitId{unit}}); }
  Steps& reduce(std::uint32_t unit) { return add({CallKind::reduce, UnitId{unit}}); }
  Steps& end() { return add({CallKind::end_step, {}}); }
  Steps& release(std::uint32_t unit) {
    step_.releases.push_back({static_cast<std::uint32_t>(step_.calls.size() - 1), UnitId{unit}});
    return *this;
  }
  Steps& held(std::uint32_t unit) {
    step_.held.emplace_back(unit);
    return *this;
  }
  operator const RecordedStep&() const { return step_; }  // NOLINT(google-explicit-constructor)

 private:
  Steps& add(ProgramCall call) {
    step_.calls.push_back(call);
    return *this;
  }
  RecordedStep step_{.held = {}, .calls = {{CallKind::begin_step, {}}}, .releases = {}};
};

// Forward and backward over `units`, one lease at a time.
RecordedStep sweep(std::uint32_t units) {
  Steps steps;
  for (std::uint32_t u = 0; u < units; ++u) steps.gather(u).release(u);
  for (std::uint32_t u = units; u-- > 0;) steps.gather(u).reduce(u).release(u);
  return steps.end();
}

TEST(Schedule, WithoutASlotAheadAGatherIsEnteredWhenItIsCalled) {
  // begin, gather 0, gather 1
  const Schedule schedule = make_schedule(Steps().gather(0).release(0).gather(1).release(1), kOne);
  EXPECT_THAT(schedule.staged_at, ElementsAre(1, 1, 2));
  EXPECT_THAT(schedule.entered_at, ElementsAre(0, 1, 2));
  EXPECT_EQ(schedule.most_in_use, 1U);
}

TEST(Schedule, ASlotThatTheProgramDoesNotUseStagesAhead) {
  const Schedule schedule =
      make_schedule(Steps().gather(0).release(0).gather(1).release(1), {.program = 2, .ahead = 0});
  EXPECT_THAT(schedule.staged_at, ElementsAre(2, 2, 2));
  EXPECT_THAT(schedule.entered_at, ElementsAre(0, 1, 2));
}

TEST(Schedule, ASlotAheadBringsTheNextGatherForward) {
  const Schedule schedule = make_schedule(sweep(3), kOneAhead);
  // begin g0 g1 g2 | g2 d2 g1 d1 g0 d0 | end
  EXPECT_THAT(schedule.gathers,
              ElementsAre(UnitId{0}, UnitId{1}, UnitId{2}, UnitId{2}, UnitId{1}, UnitId{0}));
  EXPECT_THAT(schedule.called_at, ElementsAre(0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6));
  EXPECT_THAT(schedule.staged_at, ElementsAre(2, 2, 3, 4, 5, 5, 6, 6, 6, 6, 6));
  EXPECT_THAT(schedule.entered_at, ElementsAre(1, 2, 3, 4, 5, 5, 6, 6, 6, 6, 6));
}

TEST(Schedule, AUnitThatIsHeldIsGatheredOnce) {
  const Schedule schedule = make_schedule(
      Steps().gather(0).gather(0).release(0).gather(1).release(0).release(1), kOneAhead);
  EXPECT_THAT(schedule.gathers, ElementsAre(UnitId{0}, UnitId{1}));
  EXPECT_THAT(schedule.called_at, ElementsAre(0, 1, 1, 2));
  const Schedule held = make_schedule(Steps().held(0).gather(0).release(0).gather(1), kOneAhead);
  EXPECT_THAT(held.gathers, ElementsAre(UnitId{1}));
}

TEST(Schedule, AUnitThatIsNeverReleasedKeepsItsSlot) {
  const Schedule schedule =
      make_schedule(Steps().gather(7).gather(1).release(1).gather(2), {.program = 2, .ahead = 0});
  EXPECT_THAT(schedule.staged_at, ElementsAre(2, 2, 2, 3));
  const Schedule held =
      make_schedule(Steps().held(7).gather(1).release(1).gather(2), {.program = 2, .ahead = 0});
  EXPECT_THAT(held.staged_at, ElementsAre(1, 1, 2));
}

TEST(Schedule, HashTellsWhatRanksMustAgreeOnApart) {
  const std::uint64_t hash = make_schedule(sweep(3), kOneAhead).hash;
  EXPECT_EQ(hash, make_schedule(sweep(3), kOneAhead).hash);
  EXPECT_NE(hash, make_schedule(sweep(3), kOne).hash);
  EXPECT_NE(hash, make_schedule(sweep(4), kOneAhead).hash);
  EXPECT_NE(hash, 0U);
  // Slots and ends of leases are each rank's own.
  EXPECT_EQ(hash, make_schedule(sweep(3), {.program = 3, .ahead = 4}).hash);
  EXPECT_EQ(make_schedule(Steps().gather(0).release(0).gather(1), kOneAhead).hash,
            make_schedule(Steps().gather(0).gather(1).release(0), {.program = 2, .ahead = 1}).hash);
}

// A step of random gathers and releases that holds at most `most` units at once.
RecordedStep random_step(std::uint64_t seed, std::uint32_t units, std::uint32_t most) {
  Steps steps;
  std::vector<std::uint32_t> held;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t draw = rng::at(seed, i);
    const auto unit = static_cast<std::uint32_t>(draw % units);
    const bool is_held = std::ranges::find(held, unit) != held.end();
    auto distinct = held;
    std::ranges::sort(distinct);
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    if ((draw >> 32) % 3 != 0 && (is_held || distinct.size() < most)) {
      steps.gather(unit);
      held.push_back(unit);
    } else if (!held.empty()) {
      const auto victim = static_cast<std::ptrdiff_t>((draw >> 40) % held.size());
      steps.release(held[static_cast<std::size_t>(victim)]);
      held.erase(held.begin() + victim);
    }
  }
  return steps.end();
}

// Walks through a schedule and checks what the engine relies on.
void expect_sound(const Schedule& schedule, GatherSlots slots) {
  std::uint32_t called = 0;
  for (std::size_t i = 0; i < schedule.calls.size(); ++i) {
    ASSERT_LE(schedule.called_at[i], schedule.entered_at[i]) << "call " << i;
    ASSERT_LE(schedule.entered_at[i], schedule.staged_at[i]) << "call " << i;
    // However many leases the program holds, what is entered finds a slot.
    ASSERT_LE(schedule.entered_at[i] - schedule.called_at[i], slots.ahead) << "call " << i;
    if (schedule.called_at[i] > called) {
      ASSERT_EQ(schedule.calls[i].kind, CallKind::gather);
      ASSERT_EQ(schedule.gathers[called], schedule.calls[i].unit);
      ASSERT_EQ(schedule.called_at[i], ++called);
    }
  }
  EXPECT_EQ(called, schedule.gathers.size());
  EXPECT_EQ(schedule.entered_at.back(), called);
}

TEST(Schedule, IsSoundForRandomSteps) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const auto program = static_cast<std::uint32_t>(1 + seed % 4);
    const GatherSlots slots{.program = program, .ahead = static_cast<std::uint32_t>(seed / 4 % 4)};
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_sound(make_schedule(random_step(seed, 7, program), slots), slots);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Schedule, TwentyThousandUnitsTakeMilliseconds) {
  const RecordedStep step = sweep(20'000);
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  const Schedule schedule = make_schedule(step, {.program = 4, .ahead = 4});
  EXPECT_LT(clock.now_ns() - begin_ns, 2'000'000'000);
  EXPECT_EQ(schedule.gathers.size(), 40'000U);
}

}  // namespace
}  // namespace strata::test
