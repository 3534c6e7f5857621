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

ProgramCall gather(std::uint32_t unit) { return {CallKind::gather, UnitId{unit}}; }
ProgramCall release(std::uint32_t unit) { return {CallKind::release, UnitId{unit}}; }
ProgramCall reduce(std::uint32_t unit) { return {CallKind::reduce, UnitId{unit}}; }
constexpr ProgramCall kBegin{CallKind::begin_step, {}};
constexpr ProgramCall kEnd{CallKind::end_step, {}};

// Forward and backward over `units`, one lease at a time.
std::vector<ProgramCall> sweep(std::uint32_t units) {
  std::vector<ProgramCall> calls{kBegin};
  for (std::uint32_t u = 0; u < units; ++u) calls.insert(calls.end(), {gather(u), release(u)});
  for (std::uint32_t u = units; u-- > 0;) {
    calls.insert(calls.end(), {gather(u), {CallKind::gradients, UnitId{u}}, reduce(u), release(u)});
  }
  calls.push_back(kEnd);
  return calls;
}

TEST(Schedule, OneSlotBringsNothingForwardBeyondTheRelease) {
  // begin, gather 0, release 0, gather 1, release 1
  const Schedule schedule =
      make_schedule(std::vector{kBegin, gather(0), release(0), gather(1), release(1)}, 1);
  EXPECT_THAT(schedule.staged_after, ElementsAre(1, 1, 2, 2, 2));
  EXPECT_THAT(schedule.entered_after, ElementsAre(1, 1, 2, 2, 2));
  EXPECT_EQ(schedule.most_in_use, 1U);
}

TEST(Schedule, ASecondSlotBringsTheNextGatherForward) {
  const Schedule schedule = make_schedule(sweep(3), 2);
  // begin g0 r0 g1 r1 g2 r2 | g2 . d2 r2 | g1 . d1 r1 | g0 . d0 r0 | end
  EXPECT_THAT(schedule.gathers, ElementsAre(UnitId{0}, UnitId{1}, UnitId{2}, UnitId{2}, UnitId{1},
                                            UnitId{0}));
  // Unit 2 cannot be there twice, so that its second gather waits for its release.
  EXPECT_THAT(schedule.staged_after,
              ElementsAre(2, 2, 3, 3, 3, 3, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6));
  EXPECT_THAT(schedule.entered_after,
              ElementsAre(1, 2, 2, 3, 3, 3, 4, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6));
}

TEST(Schedule, AUnitThatIsHeldIsGatheredOnce) {
  const Schedule schedule = make_schedule(
      std::vector{kBegin, gather(0), gather(0), release(0), gather(1), release(0), release(1)}, 2);
  EXPECT_THAT(schedule.gathers, ElementsAre(UnitId{0}, UnitId{1}));
}

TEST(Schedule, AUnitThatIsNeverReleasedKeepsItsSlot) {
  const Schedule schedule =
      make_schedule(std::vector{kBegin, gather(7), gather(1), release(1), gather(2)}, 2);
  EXPECT_THAT(schedule.staged_after, ElementsAre(2, 2, 2, 3, 3));
}

TEST(Schedule, HashTellsCallsAndSlotsApart) {
  const std::uint64_t hash = make_schedule(sweep(3), 2).hash;
  EXPECT_EQ(hash, make_schedule(sweep(3), 2).hash);
  EXPECT_NE(hash, make_schedule(sweep(3), 3).hash);
  EXPECT_NE(hash, make_schedule(sweep(4), 2).hash);
  EXPECT_NE(hash, 0U);
}

// A step of random gathers and releases that holds at most `most` units at once.
std::vector<ProgramCall> random_step(std::uint64_t seed, std::uint32_t units, std::uint32_t most) {
  std::vector<ProgramCall> calls{kBegin};
  std::vector<std::uint32_t> held;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t draw = rng::at(seed, i);
    const auto unit = static_cast<std::uint32_t>(draw % units);
    const bool is_held = std::ranges::find(held, unit) != held.end();
    auto distinct = held;
    std::ranges::sort(distinct);
    distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
    if ((draw >> 32) % 3 != 0 && (is_held || distinct.size() < most)) {
      calls.push_back(gather(unit));
      held.push_back(unit);
    } else if (!held.empty()) {
      const auto victim = static_cast<std::ptrdiff_t>((draw >> 40) % held.size());
      calls.push_back(release(held[static_cast<std::size_t>(victim)]));
      held.erase(held.begin() + victim);
    }
  }
  calls.push_back(kEnd);
  return calls;
}

// Walks through a schedule as the engine does and checks what the engine relies on.
void expect_sound(const Schedule& schedule, std::uint32_t slots) {
  std::vector<std::uint32_t> holders(64, 0);
  std::vector<bool> staged(64, false);
  std::size_t next_staged = 0;
  std::size_t next_called = 0;
  std::uint32_t in_use = 0;
  for (std::size_t i = 0; i < schedule.calls.size(); ++i) {
    const auto [kind, unit] = schedule.calls[i];
    if (kind == CallKind::release && --holders[unit.value] == 0) --in_use;
    for (; next_staged < schedule.staged_after[i]; ++next_staged) {
      const UnitId ahead = schedule.gathers[next_staged];
      ASSERT_EQ(holders[ahead.value], 0U) << "call " << i << " stages a unit that is held";
      ASSERT_FALSE(staged[ahead.value]) << "call " << i << " stages a unit twice";
      staged[ahead.value] = true;
      ++in_use;
    }
    ASSERT_LE(in_use, slots) << "call " << i;
    ASSERT_LE(schedule.entered_after[i], schedule.staged_after[i]);
    if (kind != CallKind::gather || holders[unit.value]++ > 0) continue;
    ASSERT_EQ(schedule.gathers[next_called++], unit);
    ASSERT_LE(next_called, schedule.entered_after[i]) << "call " << i << " is not entered in time";
    staged[unit.value] = false;
  }
  EXPECT_EQ(next_called, schedule.gathers.size());
  EXPECT_LE(schedule.most_in_use, slots);
}

TEST(Schedule, IsSoundForRandomSteps) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const auto most = static_cast<std::uint32_t>(1 + seed % 4);
    const auto slots = static_cast<std::uint32_t>(most + seed / 4 % 4);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_sound(make_schedule(random_step(seed, 7, most), slots), slots);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Schedule, TwentyThousandUnitsTakeMilliseconds) {
  const std::vector<ProgramCall> calls = sweep(20'000);
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  const Schedule schedule = make_schedule(calls, 8);
  EXPECT_LT(clock.now_ns() - begin_ns, 2'000'000'000);
  EXPECT_EQ(schedule.gathers.size(), 40'000U);
}

}  // namespace
}  // namespace strata::test
