// The NCCL communicator on the stand-in: the conformance suites over ranks of one process that are
// joined by TCP, and what NCCL's own failures lead to.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>

#include "communicator_conformance.hpp"
#include "cpu/cpu_device.hpp"
#include "cuda/cuda_device.hpp"
#include "support/error_of.hpp"
#include "support/nccl_ranks.hpp"
#include "support/standin/standin.hpp"

namespace strata::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;

void configure(std::uint32_t ranks, std::uint64_t seed) {
  standin::configure(
      {.devices = static_cast<int>(ranks),
       .memory = 64_MiB,
       .seed = seed,
       .policy = seed % 2 == 0 ? DemandPolicy::as_late_as_possible : DemandPolicy::random});
}

// Runs `body` on each rank with a communicator that is not attached yet.
void on_ranks(std::uint32_t ranks,
              const std::function<void(Rank, std::unique_ptr<Communicator>)>& body) {
  InProcessWorld meeting(ranks);
  run_ranks(ranks,
            [&](Rank rank, Communicator&) { body(rank, join_by_nccl(meeting, rank, ranks)); });
}

// The same with communicators that are attached, each to a GPU of its own.
void on_gpus(std::uint32_t ranks, const RankTest& body) {
  std::barrier attached(
      ranks);  // a rank that fails before the others are would fail their attach()
  on_ranks(ranks, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
    CudaDevice device({.arena = kTestArena, .index = static_cast<int>(rank.value)});
    communicator->attach(device);
    attached.arrive_and_wait();
    RankContext context{*communicator, device};
    body(context);
    communicator.reset();  // before its device
  });
}

TestWorld threads_on_gpus(std::uint32_t ranks, std::uint64_t seed) {
  const auto run = [=](const RankTest& test) {
    configure(ranks, seed);
    on_gpus(ranks, test);
    EXPECT_THAT(standin::finish(), IsEmpty());
  };
  return {fmt::format("ranks_{}_seed_{}", ranks, seed), run};
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance,
                         testing::Values(threads_on_gpus(1, 0), threads_on_gpus(2, 0),
                                         threads_on_gpus(2, 1), threads_on_gpus(3, 2),
                                         threads_on_gpus(4, 3)),
                         name_of_world);
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorFailures,
                         testing::Values(threads_on_gpus(2, 0), threads_on_gpus(3, 1)),
                         name_of_world);

class NcclCommunicatorTest : public testing::Test {
 protected:
  void SetUp() override { configure(2, 0); }
  void TearDown() override { EXPECT_THAT(standin::finish(), IsEmpty()); }

  // What the communicator fails with; none after a while.
  static Error failure_of(const Communicator& communicator) {
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (!communicator.failure() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(1ms);
    }
    return communicator.failure().value_or(Error(ErrorCode::invalid_argument, "it did not fail"));
  }
};

TEST_F(NcclCommunicatorTest, TwoRanksOnOneGpuAreToldOnBoth) {
  on_ranks(2, [&](Rank, std::unique_ptr<Communicator> communicator) {
    CudaDevice device({.arena = 1_MiB, .index = 1});
    const Error error = error_of([&] { communicator->attach(device); });
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_THAT(error.what(), HasSubstr("ranks 0 and 1 use the same GPU"));
    communicator.reset();
  });
}

TEST_F(NcclCommunicatorTest, ADeviceThatIsNoGpuIsToldOnBoth) {
  on_ranks(2, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
    std::unique_ptr<Device> device;
    if (rank.value == 1) {
      device = std::make_unique<CpuDevice>(CpuDevice::Options{.arena = 1_MiB});
    } else {
      device = std::make_unique<CudaDevice>(CudaDevice::Options{.arena = 1_MiB});
    }
    const Error error = error_of([&] { communicator->attach(*device); });
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    communicator.reset();
  });
}

// Collectives of one communicator come one after another, on whatever streams: the second one reads
// here what the first one writes.
TEST_F(NcclCommunicatorTest, StreamsFollowEachOther) {
  on_gpus(2, [](RankContext& context) {
    const StreamId a = context.device.create_stream("a");
    const StreamId b = context.device.create_stream("b");
    auto* const data = context.device.arena().data();
    context.device.zero(a, data, 8000_B);
    context.communicator.all_reduce(a, data, 2000, DType::fp32);
    context.communicator.all_reduce(b, data, 2000, DType::fp32);
    context.device.synchronize(context.device.record(b));
  });
}

// NCCL connects ranks at the first collective: one that does not come must not hold up the others.
TEST_F(NcclCommunicatorTest, TheFirstCollectiveHasADeadline) {
  on_gpus(2, [](RankContext& context) {
    Communicator& communicator = context.communicator;
    if (communicator.rank().value == 1) {
      EXPECT_THAT(failure_of(communicator).what(), HasSubstr("gave up"));
      return;
    }
    standin::hold_enqueues(0);
    communicator.set_timeout(300ms);
    const auto begin = std::chrono::steady_clock::now();
    communicator.all_reduce(context.device.create_stream("test"), context.device.arena().data(), 10,
                            DType::fp32);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
    EXPECT_THAT(failure_of(communicator).what(), HasSubstr("rank 1 has enqueued 0"));
  });
}

// One rank's NCCL fails while both ranks have a collective under way.
TEST_F(NcclCommunicatorTest, AnAsynchronousErrorEndsBothRanks) {
  on_gpus(2, [](RankContext& context) {
    const StreamId stream = context.device.create_stream("test");
    context.device.zero(stream, context.device.arena().data(), 8000_B);
    if (context.communicator.rank().value == 1) standin::break_nccl(1);
    context.communicator.all_reduce(stream, context.device.arena().data(), 2000, DType::fp32);
    context.device.synchronize(context.device.record(stream));
    EXPECT_EQ(failure_of(context.communicator).code(), ErrorCode::rank_lost);
  });
}

// A GPU that is lost takes its communicator down, and the peer's with it.
TEST_F(NcclCommunicatorTest, ALostGpuEndsThePeer) {
  on_gpus(2, [](RankContext& context) {
    const StreamId stream = context.device.create_stream("test");
    if (context.communicator.rank().value == 1) {
      standin::fail(standin::Failure{"cudaMemsetAsync", 1, cudaErrorIllegalAddress, true});
      context.device.zero(stream, context.device.arena().data(), 100_B);
    } else {
      context.communicator.all_reduce(stream, context.device.arena().data(), 2000, DType::fp32);
      context.device.synchronize(context.device.record(stream));
    }
    EXPECT_THAT(failure_of(context.communicator).what(), HasSubstr("cudaErrorIllegalAddress"));
  });
}

// Every call into NCCL, at every time that it is made: a failure is told on both ranks.
TEST_F(NcclCommunicatorTest, EveryFailureIsTold) {
  const auto exercise = [](std::vector<std::optional<Error>>& told) {
    on_ranks(2, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
      communicator->set_timeout(5s);
      CudaDevice device({.arena = 1_MiB, .index = static_cast<int>(rank.value)});
      try {
        communicator->attach(device);
        const StreamId stream = device.create_stream("test");
        auto* const data = device.arena().data();
        device.zero(stream, data, 8000_B);
        const ShardedBuffer buffers[] = {{data, 100, DType::bf16}, {data + 4096, 50, DType::fp32}};
        communicator->all_gather(stream, buffers);
        communicator->reduce_scatter(stream, buffers);
        communicator->broadcast(stream, data, 1000_B, Rank{1});
        communicator->all_reduce(stream, data, 500, DType::fp32);
        device.synchronize(device.record(stream));
        // A step's exchange meets what the collectives left.
        const std::byte token{1};
        static_cast<void>(communicator->exchange({&token, 1}));
        told[rank.value] = communicator->failure();
      } catch (const Error& error) {
        told[rank.value] = error;
      }
      communicator.reset();
      device.close();
    });
  };
  std::vector<std::optional<Error>> none(2);
  exercise(none);
  EXPECT_EQ(none[0] ? none[0]->what() : "", std::string());
  const auto calls = standin::calls();
  EXPECT_THAT(standin::finish(), IsEmpty());
  int failures = 0;
  for (const auto& [call, count] : calls) {
    if (!call.starts_with("nccl")) continue;
    // Told in the log only, or at the end, when nobody listens any more.
    const bool quiet = call == "ncclCommRegister" || call == "ncclCommDeregister" ||
                       call == "ncclCommFinalize" || call == "ncclCommDestroy" ||
                       call == "ncclCommAbort";
    // Polls come as often as timing has it.
    const std::uint64_t most =
        call == "ncclCommGetAsyncError" ? std::min<std::uint64_t>(count, 6) : count;
    for (std::uint64_t k = 1; k <= most; ++k) {
      SCOPED_TRACE(testing::Message() << call << " number " << k);
      configure(2, 0);
      standin::fail(standin::NcclFailure{call, k, ncclSystemError});
      std::vector<std::optional<Error>> told(2);
      exercise(told);
      const bool happened = standin::calls()[call] >= k;
      EXPECT_THAT(standin::finish(), IsEmpty());
      if (!happened || quiet) continue;
      ++failures;
      for (const auto& error : told) EXPECT_TRUE(error.has_value());
    }
  }
  EXPECT_GT(failures, 10);
}

}  // namespace
}  // namespace strata::test
