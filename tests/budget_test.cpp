#include "memory/budget.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "strata/error.hpp"

namespace strata::test {
namespace {

TEST(Budget, CountsReservationsAndLeasesExactly) {
  Budget budget(Tier::host, 1000_B);
  EXPECT_EQ(budget.tier(), Tier::host);
  EXPECT_EQ(budget.limit(), 1000_B);
  {
    Reservation a(budget, "a", 600_B);
    Reservation b(budget, "b", 400_B);
    EXPECT_EQ(budget.reserved(), 1000_B);
    EXPECT_EQ(budget.in_use(), 0_B);
    {
      const Lease first = a.lease(600_B);
      const Lease second = b.lease(1_B);
      EXPECT_EQ(first.size(), 600_B);
      EXPECT_EQ(budget.in_use(), 601_B);
      EXPECT_EQ(a.in_use(), 600_B);
      EXPECT_EQ(b.in_use(), 1_B);
    }
    EXPECT_EQ(budget.in_use(), 0_B);
    EXPECT_EQ(budget.peak_in_use(), 601_B);
    EXPECT_EQ(budget.reserved(), 1000_B);
    const auto by_tag = budget.reservations();
    EXPECT_EQ(by_tag.at("a"), 600_B);
    EXPECT_EQ(by_tag.at("b"), 400_B);
  }
  EXPECT_EQ(budget.reserved(), 0_B);
  EXPECT_EQ(budget.peak_in_use(), 601_B);
}

TEST(Budget, ReservationsOfOneTagAddUp) {
  Budget budget(Tier::device, 100_B);
  const Reservation a(budget, "scratch", 30_B);
  auto b = std::make_unique<Reservation>(budget, "scratch", 20_B);
  EXPECT_EQ(budget.reservations().at("scratch"), 50_B);
  b.reset();
  EXPECT_EQ(budget.reservations().at("scratch"), 30_B);
}

TEST(Budget, ARefusalSaysWhatWouldDo) {
  Budget budget(Tier::device, 1000_B);
  const Reservation a(budget, "a", 400_B);
  try {
    const Reservation b(budget, "gathers", 601_B);
    FAIL() << "601 of 600 bytes were reserved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::budget_exceeded);
    EXPECT_STREQ(error.what(),
                 "device budget 1000 B cannot hold 601 B for gathers: 400 B are reserved already; "
                 "the smallest budget that would do is 1001 bytes");
  }
  EXPECT_EQ(budget.reserved(), 400_B) << "a refused reservation was charged";
  EXPECT_FALSE(budget.reservations().contains("gathers"));
  const Reservation exact(budget, "exact", 600_B);
  EXPECT_EQ(budget.reserved(), 1000_B);
}

TEST(Budget, AnAbsurdSizeDoesNotWrapIntoOneThatFits) {
  Budget budget(Tier::host, 1000_B);
  const Reservation a(budget, "a", 400_B);
  EXPECT_THROW(Reservation(budget, "b", Bytes{~std::uint64_t{0} - 100}), Error);
  EXPECT_EQ(budget.reserved(), 400_B);
}

TEST(Budget, AMovedLeaseGivesBackOnce) {
  Budget budget(Tier::host, 100_B);
  Reservation reservation(budget, "a", 100_B);
  Lease kept;
  {
    Lease lease = reservation.lease(40_B);
    kept = std::move(lease);
  }
  EXPECT_EQ(budget.in_use(), 40_B);
  kept = reservation.lease(60_B);  // the old bytes return, after the new ones were taken
  EXPECT_EQ(budget.in_use(), 60_B);
  EXPECT_EQ(budget.peak_in_use(), 100_B);
  kept = Lease{};
  EXPECT_EQ(budget.in_use(), 0_B);
}

TEST(BudgetDeathTest, LeasesStayInsideTheirReservation) {
  Budget budget(Tier::host, 100_B);
  Reservation reservation(budget, "slabs", 50_B);
  const Lease lease = reservation.lease(30_B);
  EXPECT_DEATH(static_cast<void>(reservation.lease(21_B)),
               "lease of 21 bytes from slabs, which has 30 of 50 in use");
}

TEST(BudgetDeathTest, AReservationOutlivesItsLeases) {
  EXPECT_DEATH(
      {
        Budget budget(Tier::host, 100_B);
        std::optional<Reservation> reservation(std::in_place, budget, "slabs", 50_B);
        const Lease lease = reservation->lease(30_B);
        reservation.reset();
      },
      "ends while leased: slabs");
}

TEST(Budget, ManyThreadsLeaseAtOnce) {
  Budget budget(Tier::host, 4000_B);
  {
    Reservation reservation(budget, "a", 4000_B);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          const Lease lease = reservation.lease(1000_B);
          EXPECT_LE(budget.in_use(), 4000_B);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(budget.in_use(), 0_B);
  EXPECT_EQ(budget.reserved(), 0_B);
  EXPECT_GE(budget.peak_in_use(), 1000_B);
  EXPECT_LE(budget.peak_in_use(), 4000_B);
}

}  // namespace
}  // namespace strata::test
