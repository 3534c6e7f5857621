#include "support/in_process_ranks.hpp"

#include <gmock/gmock.h>

#include <atomic>

#include "communicator_conformance.hpp"
#include "cpu/cpu_device.hpp"
#include "support/adversarial_device.hpp"

namespace strata::test {
namespace {

using testing::HasSubstr;

TestWorld threads_with_cpu_devices(std::uint32_t size) {
  const auto run = [size](const RankTest& test) {
    run_ranks(
        size,
        [&](Rank, Communicator& communicator) {
          CpuDevice device({.arena = kTestArena});
          communicator.attach(device);
          RankContext context{communicator, device};
          test(context);
        },
        size);
  };
  return {"ranks_" + std::to_string(size), run};
}

TestWorld threads_with_checking_devices(std::uint32_t size) {
  const auto run = [size](const RankTest& test) {
    run_ranks(size, [&](Rank rank, Communicator& communicator) {
      AdversarialDevice device({.arena = kTestArena, .seed = rank.value, .check_leases = false});
      communicator.attach(device);
      RankContext context{communicator, device};
      test(context);
      EXPECT_THAT(device.violations(), testing::IsEmpty());
    });
  };
  return {"checked_" + std::to_string(size), run};
}

INSTANTIATE_TEST_SUITE_P(InProcess, CommunicatorConformance,
                         testing::Values(threads_with_cpu_devices(1), threads_with_cpu_devices(2),
                                         threads_with_cpu_devices(3), threads_with_cpu_devices(4),
                                         threads_with_checking_devices(2)),
                         name_of_world);
INSTANTIATE_TEST_SUITE_P(InProcess, CommunicatorFailures,
                         testing::Values(threads_with_cpu_devices(2), threads_with_cpu_devices(3)),
                         name_of_world);

std::vector<std::byte> one_byte() { return std::vector<std::byte>(1); }

TEST(InProcessRanks, AKilledRankIsNamedByItsPeers) {
  InProcessWorld world(3);
  const auto survivor = world.communicator(Rank{0});
  const auto victim = world.communicator(Rank{1});
  const auto other = world.communicator(Rank{2});
  world.kill(Rank{1});
  for (Communicator* communicator : {survivor.get(), other.get()}) {
    try {
      communicator->exchange(one_byte());
      ADD_FAILURE() << "exchanged with the dead";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::rank_lost);
      EXPECT_EQ(error.context().rank, Rank{1}) << error.what();
    }
  }
  EXPECT_THROW(victim->exchange(one_byte()), Error);
}

// Kills one rank after it has run k collectives, for every k: the peers' work ends, every one of
// them says who is lost, and nobody hangs.
TEST(InProcessRanks, AKillAtAnyMomentEndsThePeersCollectives) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::uint32_t kCollectives = 12;
  for (std::uint32_t alive = 0; alive < kCollectives; ++alive) {
    InProcessWorld world(kRanks, alive);
    std::atomic<std::uint32_t> failures = 0;
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        CpuDevice device({.arena = 1_MiB});
        const auto communicator = world.communicator(Rank{rank});
        communicator->attach(device);
        const StreamId stream = device.create_stream("collectives");
        const ShardedBuffer buffer{device.arena().data(), 1000, DType::bf16};
        for (std::uint32_t i = 0; i < kCollectives; ++i) {
          if (rank == 1 && i == alive) device.launch(stream, [&] { world.kill(Rank{1}); });
          if (i % 2 == 0) {
            communicator->all_gather(stream, {&buffer, 1});
          } else {
            communicator->reduce_scatter(stream, {&buffer, 1});
          }
        }
        device.synchronize(device.record(stream));
        const auto failure = communicator->failure();
        if (rank == 1 || !failure) return;
        EXPECT_EQ(failure->code(), ErrorCode::rank_lost);
        EXPECT_THAT(failure->what(), HasSubstr("rank 1"));
        ++failures;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, kRanks - 1) << "killed before collective " << alive;
  }
}

TEST(InProcessRanks, RunRanksThrowsTheFirstFailureAndReleasesThePeers) {
  const auto one_fails = [](Rank rank, Communicator& communicator) {
    if (rank == Rank{1}) throw std::runtime_error("out of paper");
    communicator.exchange(one_byte());
  };
  try {
    run_ranks(3, one_fails);
    ADD_FAILURE() << "the failure was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of paper");
  }
}

}  // namespace
}  // namespace strata::test
