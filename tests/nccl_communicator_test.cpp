// The NCCL communicator on the stand-in: the conformance suites over ranks of one process that are
// joined by TCP, and what NCCL's own failures lead to.
#include "nccl/nccl_communicator.hpp"

#include <gmock/gmock.h>

#include <fmt/format.h>
#include <atomic>
#include <chrono>

#include "communicator_conformance.hpp"
#include "cpu/cpu_device.hpp"
#include "cuda/cuda_device.hpp"
#include "support/in_process_ranks.hpp"
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
  run_ranks(ranks, [&](Rank rank, Communicator&) {
    const auto place = meeting.communicator(rank);
    auto control = tcp::ControlPlane::connect(
        rank.value, ranks, [&](std::span<const std::byte> mine) { return place->exchange(mine); },
        30s);
    body(rank, create_nccl_communicator(std::move(control)));
  });
}

TestWorld threads_on_gpus(std::uint32_t ranks, std::uint64_t seed) {
  const auto run = [=](const RankTest& test) {
    configure(ranks, seed);
    on_ranks(ranks, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
      CudaDevice device({.arena = kTestArena, .index = static_cast<int>(rank.value)});
      communicator->attach(device);
      RankContext context{*communicator, device};
      test(context);
      communicator.reset();
    });
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
  void TearDown() override { EXPECT_THAT(standin::finish(), IsEmpty()); }

  static Error error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error was thrown";
    return Error(ErrorCode::invalid_argument, "none");
  }
};

TEST_F(NcclCommunicatorTest, TwoRanksOnOneGpuAreToldOnBoth) {
  configure(2, 0);
  on_ranks(2, [&](Rank, std::unique_ptr<Communicator> communicator) {
    CudaDevice device({.arena = 1_MiB, .index = 1});
    const Error error = error_of([&] { communicator->attach(device); });
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_THAT(error.what(), HasSubstr("ranks 0 and 1 use the same GPU"));
    communicator.reset();
  });
}

TEST_F(NcclCommunicatorTest, ADeviceThatIsNoGpuIsToldOnBoth) {
  configure(2, 0);
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
  configure(2, 0);
  on_ranks(2, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
    CudaDevice device({.arena = 1_MiB, .index = static_cast<int>(rank.value)});
    communicator->attach(device);
    const StreamId a = device.create_stream("a");
    const StreamId b = device.create_stream("b");
    auto* const data = device.arena().data();
    device.zero(a, data, 8000_B);
    communicator->all_reduce(a, data, 2000, DType::fp32);
    communicator->all_reduce(b, data, 2000, DType::fp32);
    device.synchronize(device.record(b));
    communicator.reset();
  });
}

// NCCL connects ranks at the first collective: one that does not come must not hold up the others.
TEST_F(NcclCommunicatorTest, TheFirstCollectiveHasADeadline) {
  configure(2, 0);
  on_ranks(2, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
    CudaDevice device({.arena = 1_MiB, .index = static_cast<int>(rank.value)});
    communicator->attach(device);
    if (rank.value == 0) {
      standin::hold_enqueues(0);
      communicator->set_timeout(300ms);
      const auto begin = std::chrono::steady_clock::now();
      communicator->all_reduce(device.create_stream("test"), device.arena().data(), 10,
                               DType::fp32);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
      ASSERT_TRUE(communicator->failure().has_value());
      EXPECT_THAT(communicator->failure()->what(), HasSubstr("rank 1 has enqueued 0"));
    } else {
      while (!communicator->failure()) std::this_thread::sleep_for(1ms);
      EXPECT_THAT(communicator->failure()->what(), HasSubstr("gave up"));
    }
    communicator.reset();
  });
}

// One rank's NCCL fails while both ranks have a collective under way.
TEST_F(NcclCommunicatorTest, AnAsynchronousErrorEndsBothRanks) {
  configure(2, 0);
  std::atomic<int> failures{0};
  on_ranks(2, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
    CudaDevice device({.arena = 1_MiB, .index = static_cast<int>(rank.value)});
    communicator->attach(device);
    const StreamId stream = device.create_stream("test");
    device.zero(stream, device.arena().data(), 8000_B);
    if (rank.value == 1) standin::break_nccl(1);
    communicator->all_reduce(stream, device.arena().data(), 2000, DType::fp32);
    device.synchronize(device.record(stream));
    const auto begin = std::chrono::steady_clock::now();
    while (!communicator->failure() && std::chrono::steady_clock::now() - begin < 10s) {
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_TRUE(communicator->failure().has_value());
    EXPECT_EQ(communicator->failure()->code(), ErrorCode::rank_lost);
    ++failures;
    communicator.reset();
  });
  EXPECT_EQ(failures, 2);
}

// A GPU that is lost takes its communicator down, and the peer's with it.
TEST_F(NcclCommunicatorTest, ALostGpuEndsThePeer) {
  configure(2, 0);
  on_ranks(2, [&](Rank rank, std::unique_ptr<Communicator> communicator) {
    CudaDevice device({.arena = 1_MiB, .index = static_cast<int>(rank.value)});
    communicator->attach(device);
    const StreamId stream = device.create_stream("test");
    if (rank.value == 1) {
      device.fail(Error(ErrorCode::device, "the GPU has fallen off the bus"));
    } else {
      communicator->all_reduce(stream, device.arena().data(), 2000, DType::fp32);
      device.synchronize(device.record(stream));
    }
    const auto begin = std::chrono::steady_clock::now();
    while (!communicator->failure() && std::chrono::steady_clock::now() - begin < 10s) {
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_TRUE(communicator->failure().has_value());
    EXPECT_THAT(communicator->failure()->what(), HasSubstr("fallen off the bus"));
    communicator.reset();
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
  configure(2, 0);
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
