// What the stand-in tells of programs that misuse NCCL, and of ranks, devices and calls that fail.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "base/element.hpp"
#include "support/standin/test_nccl.hpp"

namespace strata::test::standin {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using StandinNcclMisuse = Standin;

Options ranks(int size, std::uint64_t seed = 0) {
  return {.devices = size, .memory = 1_MiB, .seed = seed, .patience = std::chrono::milliseconds(2)};
}

TEST_F(StandinNcclMisuse, OneThreadCanStartAllRanksInAGroup) {
  configure(ranks(2));
  const ncclUniqueId id = make_id();
  std::array<ncclComm_t, 2> comms{};
  expect_ok(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    expect_ok(cudaSetDevice(rank));
    expect_ok(ncclCommInitRank(&comms[static_cast<std::size_t>(rank)], 2, id, rank));
  }
  expect_ok(ncclGroupEnd());
  for (const ncclComm_t comm : comms) expect_ok(ncclCommDestroy(comm));
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinNcclMisuse, TwoRanksOnOneDeviceAreRefused) {
  for (const bool blocking : {true, false}) {
    configure(ranks(1));
    const ncclUniqueId id = make_id();
    const auto run = [&](int rank) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking ? 1 : 0;
      ncclComm_t comm = nullptr;
      ncclResult_t result = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
      while (result == ncclInProgress) expect_ok(ncclCommGetAsyncError(comm, &result));
      EXPECT_EQ(result, ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("Duplicate GPU detected"));
      EXPECT_EQ(comm == nullptr, blocking);
      if (comm != nullptr) {
        EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidUsage);
        expect_ok(ncclCommAbort(comm));
      }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    EXPECT_THAT(finish(), IsEmpty());
  }
}

// The seeds answer ncclInProgress sometimes, and then nothing is on the stream.
TEST_F(StandinNcclMisuse, AnEventRecordedWhileACallIsInProgressIsTooEarly) {
  int in_progress = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    configure(ranks(1, seed));
    {
      RankProgram rank(0, 1, make_id(), false);
      const cudaStream_t other = make_stream();
      const cudaEvent_t event = make_event();
      float* const memory = make_memory(4);
      const ncclResult_t result =
          ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream());
      expect_ok(cudaEventRecord(event, rank.stream()));
      expect_ok(cudaStreamWaitEvent(other, event, 0));
      EXPECT_EQ(works(), result == ncclInProgress ? 0U : 1U);
      expect_ok(rank.until_settled(result));
      EXPECT_EQ(works(), 1U);
      // Only says that it reads: the thread sanitizer runs this.
      const Access reads{memory, Bytes{16}, false};
      expect_ok(launch(other, {&reads, 1}, [] {}));
      end(other);
      expect_ok(cudaStreamSynchronize(rank.stream()));
      expect_ok(cudaEventDestroy(event));
      expect_ok(cudaFree(memory));
      in_progress += result == ncclInProgress ? 1 : 0;
      if (result == ncclInProgress) {
        EXPECT_THAT(violations(), Contains(HasSubstr("nothing orders it after all-reduce")));
      } else {
        EXPECT_THAT(violations(), IsEmpty());
      }
    }
    finish();
  }
  EXPECT_GT(in_progress, 4);
  EXPECT_LT(in_progress, 16);
}

TEST_F(StandinNcclMisuse, ACommunicatorIsNotUsedWhileItIsInProgress) {
  configure(ranks(1));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  // A second rank that never comes.
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, make_id(), 0, &config), ncclInProgress);
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(4);
  EXPECT_EQ(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, stream),
            ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
  for (int poll = 0; poll < 100; ++poll) {
    ncclResult_t result = ncclSuccess;
    expect_ok(ncclCommGetAsyncError(comm, &result));
    EXPECT_EQ(result, ncclInProgress);
  }
  expect_ok(ncclCommAbort(comm));
  expect_ok(cudaFree(memory));
  end(stream);
  EXPECT_THAT(finish(), AllOf(SizeIs(2), Each(HasSubstr("told ncclSuccess"))));
}

TEST_F(StandinNcclMisuse, AbortEndsTheWaitForARankThatNeverComes) {
  configure(ranks(2));
  run_ranks(2, true, [](RankProgram& rank) {
    if (rank.rank() == 1) return;
    float* const memory = make_memory(4);
    expect_ok(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream()));
    std::thread waiter([&] { expect_ok(cudaStreamSynchronize(rank.stream())); });
    // Long enough for the collective to be waiting already, most of the time.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(cudaStreamQuery(rank.stream()), cudaErrorNotReady);
    const ncclComm_t comm = rank.comm();
    rank.abort();
    waiter.join();
    EXPECT_THAT(violations(), IsEmpty());
    ncclResult_t result = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &result), ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(comm), ncclInvalidArgument);
    expect_ok(cudaFree(memory));
  });
  EXPECT_THAT(finish(), AllOf(SizeIs(2), Each(HasSubstr("was destroyed or aborted before"))));
}

TEST_F(StandinNcclMisuse, CollectivesMustMatch) {
  configure(ranks(2));
  run_ranks(2, true, [](RankProgram& rank) {
    float* const memory = make_memory(8);
    const std::size_t count = rank.rank() == 0 ? 4 : 2;
    expect_ok(
        ncclAllReduce(memory, memory, count, ncclFloat32, ncclSum, rank.comm(), rank.stream()));
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess) expect_ok(ncclCommGetAsyncError(rank.comm(), &result));
    EXPECT_EQ(result, ncclInternalError);
    rank.abort();
    expect_ok(cudaStreamSynchronize(rank.stream()));
    expect_ok(cudaFree(memory));
  });
  EXPECT_THAT(finish(), ElementsAre(AllOf(HasSubstr("all-reduce of 4 elements"),
                                          HasSubstr("all-reduce of 2 elements"))));
}

TEST_F(StandinNcclMisuse, ABrokenRankHangsUntilItIsAborted) {
  configure(ranks(2));
  std::atomic<int> enqueued{0};
  run_ranks(2, false, [&](RankProgram& rank) {
    float* const memory = make_memory(4);
    expect_ok(rank.until_settled(
        ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream())));
    expect_ok(cudaStreamSynchronize(rank.stream()));
    if (++enqueued == 2) break_nccl(1, ncclRemoteError);
    while (enqueued < 2) std::this_thread::yield();
    ncclResult_t result = ncclSuccess;
    if (rank.rank() == 1) {
      while (result != ncclRemoteError) {
        expect_ok(ncclCommGetAsyncError(rank.comm(), &result));
      }
      EXPECT_EQ(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream()),
                ncclRemoteError);
    } else {
      expect_ok(rank.until_settled(
          ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream())));
      EXPECT_EQ(cudaStreamQuery(rank.stream()), cudaErrorNotReady);
    }
    rank.abort();
    expect_ok(cudaStreamSynchronize(rank.stream()));
    expect_ok(cudaFree(memory));
  });
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinNcclMisuse, TheEndOfACommunicatorWaitsForItsWork) {
  for (const bool blocking : {true, false}) {
    for (const bool finalize : {true, false}) {
      SCOPED_TRACE(fmt::format("blocking {} finalize {}", blocking, finalize));
      configure({.memory = 1_MiB, .patience = kForever});
      std::atomic<bool> ran{false};
      {
        RankProgram rank(0, 1, make_id(), blocking);
        float* const memory = make_memory(4);
        expect_ok(launch(rank.stream(), {}, [&ran] { ran = true; }));
        expect_ok(rank.until_settled(
            ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream())));
        EXPECT_FALSE(ran);
        if (finalize) {
          expect_ok(rank.until_settled(ncclCommFinalize(rank.comm())));
          EXPECT_TRUE(ran);
        }
        rank.destroy();
        EXPECT_TRUE(ran);
        expect_ok(cudaFree(memory));
      }
      EXPECT_THAT(finish(), IsEmpty());
    }
  }
}

TEST_F(StandinNcclMisuse, AFinalizedCommunicatorIsOver) {
  configure(ranks(1));
  {
    RankProgram rank(0, 1, make_id(), true);
    float* const memory = make_memory(4);
    expect_ok(ncclCommFinalize(rank.comm()));
    EXPECT_EQ(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream()),
              ncclInvalidUsage);
    rank.destroy();
    expect_ok(cudaFree(memory));
  }
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("communicator 1 is finalized")));
}

TEST_F(StandinNcclMisuse, AUniqueIdIsForOneUse) {
  configure(ranks(1));
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  ncclComm_t other = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 1, ncclUniqueId{}, 0), ncclInvalidArgument);
  expect_ok(ncclCommInitRank(&comm, 1, id, 0));
  EXPECT_EQ(ncclCommInitRank(&other, 1, id, 0), ncclInvalidUsage);
  expect_ok(ncclCommDestroy(comm));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclUniqueId next = make_id();
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, next, 0, &config), ncclInProgress);
  EXPECT_EQ(ncclCommInitRankConfig(&other, 2, next, 0, &config), ncclInvalidUsage);
  EXPECT_EQ(ncclCommInitRankConfig(&other, 3, next, 1, &config), ncclInvalidArgument);
  expect_ok(ncclCommAbort(comm));
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("not of ncclGetUniqueId"), HasSubstr("used again"),
                                    HasSubstr("twice"), HasSubstr("says 3 ranks")));
}

TEST_F(StandinNcclMisuse, StreamsAreOfTheCommunicatorsDevice) {
  configure(ranks(2));
  {
    RankProgram rank(0, 1, make_id(), true);
    float* const memory = make_memory(4);
    const auto reduce = [&](cudaStream_t stream) {
      return ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), stream);
    };
    expect_ok(cudaSetDevice(1));
    const cudaStream_t other = make_stream();
    EXPECT_EQ(reduce(other), ncclInvalidUsage);
    EXPECT_EQ(reduce(rank.stream()), ncclUnhandledCudaError);
    end(other);
    expect_ok(cudaFree(memory));
  }
  EXPECT_THAT(finish(),
              ElementsAre(HasSubstr("communicator 1 belongs to device 0"),
                          HasSubstr("stream 1 belongs to device 0, and the current device is 1")));
}

TEST_F(StandinNcclMisuse, BuffersAreInAllocations) {
  configure(ranks(1));
  {
    RankProgram rank(0, 1, make_id(), true);
    float* const memory = make_memory(8);
    Pinned<float> host({1, 2, 3, 4});
    const auto reduce = [&](const float* send, float* receive) {
      return ncclAllReduce(send, receive, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream());
    };
    EXPECT_EQ(reduce(host.data(), memory), ncclInvalidArgument);
    EXPECT_EQ(reduce(memory, memory + 5), ncclInvalidArgument);
    EXPECT_EQ(reduce(memory, memory + 2), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(memory, memory, 4, ncclFloat16, ncclMax, rank.comm(), rank.stream()),
              ncclInvalidArgument);
    void* key = nullptr;
    EXPECT_EQ(ncclCommRegister(rank.comm(), host.data(), 16, &key), ncclInvalidArgument);
    EXPECT_THAT(violations(), SizeIs(5));
    expect_ok(reduce(memory, memory + 4));
    expect_ok(cudaStreamSynchronize(rank.stream()));
    expect_ok(cudaFree(memory));
  }
  EXPECT_THAT(finish(), SizeIs(5));
}

TEST_F(StandinNcclMisuse, RegistrationsAreGivenBack) {
  configure(ranks(1));
  void* key = nullptr;
  float* const memory = make_memory(8);
  {
    RankProgram rank(0, 1, make_id(), true);
    expect_ok(ncclCommRegister(rank.comm(), memory, 32, &key));
    expect_ok(ncclCommDeregister(rank.comm(), key));
    EXPECT_THAT(violations(), IsEmpty());
    EXPECT_EQ(ncclCommDeregister(rank.comm(), key), ncclInvalidArgument);
    expect_ok(ncclCommRegister(rank.comm(), memory, 32, &key));
    expect_ok(cudaFree(memory));
  }
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("has no such registration"),
                                    HasSubstr("is still registered with a communicator"),
                                    HasSubstr("still has 1 registered buffers")));
}

TEST_F(StandinNcclMisuse, NothingOrdersTheCollectivesOfAGroup) {
  configure(ranks(1));
  {
    RankProgram rank(0, 1, make_id(), true);
    float* const memory = make_memory(8);
    expect_ok(ncclGroupStart());
    for (float* const data : {memory, memory + 2}) {
      expect_ok(ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream()));
    }
    expect_ok(ncclGroupEnd());
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    expect_ok(cudaStreamSynchronize(rank.stream()));
    expect_ok(cudaFree(memory));
  }
  EXPECT_THAT(finish(), ElementsAre(HasSubstr("collectives 0 and 1 of a group touch the same"),
                                    HasSubstr("no group to end")));
}

TEST_F(StandinNcclMisuse, AGroupWithAFailedCallIssuesNothing) {
  configure(ranks(1));
  {
    RankProgram rank(0, 1, make_id(), true);
    float* const memory = make_memory(8);
    fail(NcclFailure{"ncclAllReduce", 2, ncclSystemError});
    const auto reduce = [&](float* data) {
      return ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream());
    };
    expect_ok(ncclGroupStart());
    expect_ok(reduce(memory));
    EXPECT_EQ(reduce(memory + 4), ncclSystemError);
    EXPECT_EQ(ncclGroupEnd(), ncclSystemError);
    EXPECT_EQ(works(), 0U);
    expect_ok(reduce(memory));
    EXPECT_EQ(works(), 1U);
    expect_ok(cudaStreamSynchronize(rank.stream()));
    expect_ok(cudaFree(memory));
  }
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinNcclMisuse, ALostDeviceIsAnErrorOfItsCommunicator) {
  configure(ranks(2));
  fail_async(1);
  const ncclUniqueId id = make_id();
  std::atomic<int> aborted{0};
  const auto run = [&](int number) {
    ncclComm_t comm = nullptr;
    expect_ok(cudaSetDevice(number));
    const cudaStream_t stream = make_stream();
    float* const memory = make_memory(4);
    expect_ok(ncclCommInitRank(&comm, 2, id, number));
    expect_ok(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, stream));
    // The rank on the lost device is told; the other waits until its peer has given up.
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess && aborted == 0) {
      expect_ok(ncclCommGetAsyncError(comm, &result));
    }
    EXPECT_TRUE(result == ncclSuccess || result == ncclUnhandledCudaError);
    expect_ok(ncclCommAbort(comm));
    ++aborted;
    const cudaError_t lost = cudaStreamSynchronize(stream);
    EXPECT_EQ(lost, result == ncclSuccess ? cudaSuccess : cudaErrorIllegalAddress);
    EXPECT_EQ(cudaStreamDestroy(stream), lost);
    EXPECT_EQ(cudaFree(memory), lost);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_EQ(aborted, 2);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(StandinNcclMisuse, ALostDeviceEndsItsCollectives) {
  configure(ranks(2));
  const ncclUniqueId id = make_id();
  std::thread peer([&id] {
    ncclComm_t comm = nullptr;
    expect_ok(cudaSetDevice(1));
    expect_ok(ncclCommInitRank(&comm, 2, id, 1));
    expect_ok(ncclCommDestroy(comm));
  });
  ncclComm_t comm = nullptr;
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(4);
  expect_ok(ncclCommInitRank(&comm, 2, id, 0));
  peer.join();
  expect_ok(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, stream));
  std::thread waiter([&] { EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure); });
  // Long enough for the collective to be waiting already, most of the time.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  int device = 0;
  fail({"cudaGetDevice", 1, cudaErrorLaunchFailure, true});
  EXPECT_EQ(cudaGetDevice(&device), cudaErrorLaunchFailure);
  waiter.join();
  expect_ok(ncclCommAbort(comm));
  EXPECT_EQ(cudaFree(memory), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorLaunchFailure);
}

TEST_F(StandinNcclMisuse, ACommunicatorThatIsNotDestroyedIsTold) {
  configure(ranks(2));
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&id, rank] {
      ncclComm_t comm = nullptr;
      expect_ok(cudaSetDevice(rank));
      expect_ok(ncclCommInitRank(&comm, 2, id, rank));
      if (rank == 0) {
        expect_ok(ncclCommDestroy(comm));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(finish(),
              ElementsAre(AllOf(HasSubstr("leak: communicator"), HasSubstr("rank 1 of 2"))));
}

TEST_F(StandinNcclMisuse, WorkThatHangsAtTheEndIsGivenUp) {
  configure(ranks(2));
  const ncclUniqueId id = make_id();
  std::thread other([&id] {
    ncclComm_t comm = nullptr;
    expect_ok(cudaSetDevice(1));
    expect_ok(ncclCommInitRank(&comm, 2, id, 1));
  });
  ncclComm_t comm = nullptr;
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(4);
  expect_ok(ncclCommInitRank(&comm, 2, id, 0));
  expect_ok(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, stream));
  other.join();
  EXPECT_THAT(finish(),
              AllOf(Contains(HasSubstr("rank 0 of 2")), Contains(HasSubstr("rank 1 of 2"))));
}

// Starts, reduces and ends, whatever fails on the way. The first error, if any.
ncclResult_t reduce_once(bool blocking) {
  ncclResult_t first = ncclSuccess;
  ncclComm_t comm = nullptr;
  const auto ok = [&](ncclResult_t result) {
    while (result == ncclInProgress) {
      const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
      if (asked != ncclSuccess) result = asked;
    }
    if (first == ncclSuccess) first = result;
    return result == ncclSuccess;
  };
  const cudaStream_t stream = make_stream();
  float* const memory = make_memory(4);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  ncclUniqueId id{};
  void* key = nullptr;
  if (ok(ncclGetUniqueId(&id)) && ok(ncclCommInitRankConfig(&comm, 1, id, 0, &config)) &&
      ok(ncclCommRegister(comm, memory, 16, &key)) && ok(ncclGroupStart())) {
    ok(ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, comm, stream));
    ok(ncclGroupEnd());
    ok(ncclCommDeregister(comm, key));
  }
  expect_ok(cudaStreamSynchronize(stream));
  const bool ended = comm != nullptr && first == ncclSuccess && ok(ncclCommFinalize(comm)) &&
                     ok(ncclCommDestroy(comm));
  if (comm != nullptr && !ended && ncclCommAbort(comm) != ncclSuccess) ncclCommAbort(comm);
  expect_ok(cudaFree(memory));
  end(stream);
  return first;
}

TEST_F(StandinNcclMisuse, EveryCallCanFail) {
  for (const bool blocking : {true, false}) {
    configure(ranks(1));
    EXPECT_EQ(reduce_once(blocking), ncclSuccess);
    const std::map<std::string, std::uint64_t> made = calls();
    EXPECT_THAT(finish(), IsEmpty());
    EXPECT_EQ(made.at("ncclAllReduce"), 1U);
    EXPECT_EQ(made.contains("ncclCommGetAsyncError"), !blocking);
    for (const auto& [name, count] : made) {
      for (std::uint64_t k = 1; k <= count && name.starts_with("nccl"); ++k) {
        SCOPED_TRACE(fmt::format("{} #{}, blocking {}", name, k, blocking));
        configure(ranks(1));
        fail(NcclFailure{name, k, ncclSystemError});
        EXPECT_EQ(reduce_once(blocking), ncclSystemError);
        EXPECT_THAT(finish(), IsEmpty());
      }
    }
  }
}

TEST_F(StandinNcclMisuse, AStreamOutlivesWhatIsInProgressOnIt) {
  bool seen = false;
  for (std::uint64_t seed = 0; seed < 16 && !seen; ++seed) {
    configure(ranks(1, seed));
    {
      RankProgram rank(0, 1, make_id(), false);
      const cudaStream_t stream = make_stream();
      float* const memory = make_memory(4);
      const ncclResult_t result =
          ncclAllReduce(memory, memory, 4, ncclFloat32, ncclSum, rank.comm(), stream);
      seen = result == ncclInProgress;
      if (!seen) {
        expect_ok(cudaStreamSynchronize(stream));
      }
      expect_ok(cudaStreamDestroy(stream));
      expect_ok(rank.until_settled(result));
      expect_ok(cudaFree(memory));
    }
    EXPECT_THAT(finish(), SizeIs(seen ? 1 : 0));
  }
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace strata::test::standin
