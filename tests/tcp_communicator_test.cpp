#include "tcp/tcp_communicator.hpp"

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <barrier>

#include "communicator_conformance.hpp"
#include "cpu/cpu_device.hpp"
#include "support/child_process.hpp"
#include "support/tcp_ranks.hpp"

namespace strata::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// Small against kLargeElems, so that sums need many chunks; odd, so that they do not fit.
constexpr Bytes kStaging{50'001};

void on_communicators(std::uint32_t size, const RankTest& test) {
  ThreadGather gather(size);
  std::barrier joined(size);  // a rank that fails before the others have joined would fail them
  on_threads(size, [&](std::uint32_t rank) {
    CpuDevice device({.arena = kTestArena});
    const auto communicator = create_tcp_communicator(
        tcp::ControlPlane::connect(
            rank, size, [&](std::span<const std::byte> mine) { return gather.gather(rank, mine); },
            std::chrono::seconds(60)),
        kStaging);
    communicator->attach(device);
    joined.arrive_and_wait();
    RankContext context{*communicator, device};
    test(context);
  });
}

TestWorld threads(std::uint32_t size) {
  return {"ranks_" + std::to_string(size),
          [size](const RankTest& test) { on_communicators(size, test); }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorConformance,
                         testing::Values(threads(1), threads(2), threads(4)), name_of_world);
INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorFailures, testing::Values(threads(2), threads(4)),
                         name_of_world);

TEST(TcpCommunicator, ChargesWhatItStagesThrough) {
  on_communicators(3, [](RankContext& context) {
    EXPECT_EQ(context.communicator.staging_bytes(), kStaging);
    EXPECT_EQ(context.communicator.name(), "tcp");
    EXPECT_TRUE(context.communicator.host_memory_only());
  });
  on_communicators(
      1, [](RankContext& context) { EXPECT_EQ(context.communicator.staging_bytes(), Bytes{0}); });
}

// Far more than socket buffers hold, from every rank to every rank at the same time.
TEST(TcpCommunicator, FullSocketBuffersDoNotStopTheRanks) {
  on_communicators(3, [](RankContext& context) {
    constexpr std::uint64_t kShard = 2'500'000;
    const std::uint32_t size = context.communicator.size();
    const StreamId stream = context.device.create_stream("test");
    auto* const data = reinterpret_cast<float*>(context.device.arena().data());
    std::fill_n(data, kShard * size, 1.0F);
    const ShardedBuffer buffer{data, kShard, DType::fp32};
    context.communicator.reduce_scatter(stream, {&buffer, 1});
    context.communicator.all_gather(stream, {&buffer, 1});
    context.device.synchronize(context.device.record(stream));
    ASSERT_FALSE(context.communicator.failure());
    for (std::uint64_t i = 0; i < kShard * size; i += 10'009) ASSERT_EQ(data[i], 3.0F) << i;
  });
}

// A rank that is slow to come holds nobody's control messages up.
TEST(TcpCommunicator, ControlPassesBesidePayload) {
  on_communicators(2, [](RankContext& context) {
    constexpr std::uint64_t kShard = 3'000'000;
    const StreamId stream = context.device.create_stream("test");
    const ShardedBuffer buffer{context.device.arena().data(), kShard, DType::fp32};
    const std::byte mine{1};
    const auto gather = [&] { context.communicator.all_gather(stream, {&buffer, 1}); };
    if (context.communicator.rank().value == 0) gather();
    for (int i = 0; i < 50; ++i) context.communicator.exchange({&mine, 1});
    if (context.communicator.rank().value == 1) gather();
    context.device.synchronize(context.device.record(stream));
    EXPECT_FALSE(context.communicator.failure());
  });
}

TEST(TcpCommunicator, CollectivesThatDifferAreNamed) {
  on_communicators(2, [](RankContext& context) {
    const StreamId stream = context.device.create_stream("test");
    const std::uint64_t shard = context.communicator.rank().value == 0 ? 100 : 200;
    const ShardedBuffer buffer{context.device.arena().data(), shard, DType::fp32};
    context.communicator.all_gather(stream, {&buffer, 1});
    context.device.synchronize(context.device.record(stream));
    const auto failure = context.communicator.failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_THAT(failure->what(), HasSubstr("400 bytes in all_gather number 1"));
    EXPECT_THAT(failure->what(), HasSubstr("800 bytes in all_gather number 1"));
  });
}

// Ends while the peers still read what it sent last.
TEST(TcpCommunicator, ARankMayCloseAsSoonAsItIsDone) {
  for (int round = 0; round < 5; ++round) {
    on_communicators(3, [](RankContext& context) {
      const StreamId stream = context.device.create_stream("test");
      const ShardedBuffer buffer{context.device.arena().data(), 1'000'000, DType::bf16};
      const std::vector<std::byte> mine(100'000, std::byte{7});
      context.communicator.all_gather(stream, {&buffer, 1});
      context.communicator.exchange(mine);
      context.device.synchronize(context.device.record(stream));
      EXPECT_FALSE(context.communicator.failure());
    });
  }
}

TEST(TcpCommunicator, ALossIsTheFailureOfEveryPartThatNeedsTheRank) {
  on_communicators(4, [](RankContext& context) {
    const std::uint32_t rank = context.communicator.rank().value;
    const auto half = context.communicator.split(rank / 2, 0);
    context.communicator.exchange({});
    if (rank == 3) half->abort("enough");
    if (rank == 2) {
      const Error error = error_of([&] { half->exchange({}); });
      EXPECT_THAT(error.what(), HasSubstr("rank 1 gave up: enough"));
    }
    if (rank < 2) half->exchange({});
    context.communicator.exchange({});
    EXPECT_FALSE(context.communicator.failure());
    EXPECT_EQ(half->failure().has_value(), rank >= 2);
  });
}

// Real processes, found by the environment.
class TcpProcesses {
 public:
  TcpProcesses(const std::string& scenario, std::uint32_t size) {
    const std::string port = std::to_string(free_port());
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{STRATA_TCP_RANK_PROGRAM, scenario},
          ChildOptions{
              .directory = testing::TempDir(),
              .environment = {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size),
                              "MASTER_ADDR=localhost", "MASTER_PORT=" + port}}));
    }
  }

  // Sends a signal to the last rank when all others wait for it. It is killed in the end.
  void signal_last(int signal) {
    for (std::size_t rank = 0; rank + 1 < ranks_.size(); ++rank) {
      ASSERT_TRUE(ranks_[rank]->wait_for_output("ready", std::chrono::seconds(60)));
    }
    ASSERT_EQ(::kill(ranks_.back()->pid(), signal), 0);
  }

  std::string output_of(std::uint32_t rank) {
    const ChildResult result = ranks_[rank]->wait(std::chrono::seconds(60));
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

 private:
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

class TcpRankLoss : public testing::TestWithParam<std::string> {};

// The end of its connections tells, long before the timeout of 60 s.
TEST_P(TcpRankLoss, ADeathIsReportedWithinASecond) {
  TcpProcesses ranks(GetParam(), 3);
  ranks.signal_last(SIGKILL);
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(ranks.output_of(rank), ContainsRegex("rank_lost after [0-9]{1,3} ms: .*rank 2"));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, TcpRankLoss,
                         testing::Values("killed_in_collective", "killed_in_exchange",
                                         "killed_while_idle"),
                         [](const auto& scenario) { return scenario.param; });

class TcpRankHang : public testing::TestWithParam<std::string> {};

// A stopped process is alive, so only the timeout (700 ms) finds it.
TEST_P(TcpRankHang, AHangEndsAtTheTimeout) {
  TcpProcesses ranks(GetParam(), 3);
  ranks.signal_last(SIGSTOP);
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(ranks.output_of(rank),
                ContainsRegex("rank_lost after [0-9]{3,4} ms: .*rank 2 did not arrive"));
  }
}

INSTANTIATE_TEST_SUITE_P(Places, TcpRankHang,
                         testing::Values("stopped_in_collective", "stopped_in_exchange"),
                         [](const auto& scenario) { return scenario.param; });

TEST(TcpRankEnd, ARankThatEndedAsItShouldIsNamedWhenItIsNeeded) {
  TcpProcesses ranks("ended_before_exchange", 3);
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(ranks.output_of(rank), HasSubstr("rank 2 closed its communicator"));
  }
}

}  // namespace
}  // namespace strata::test
