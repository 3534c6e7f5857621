// What the stand-in promises of NCCL (support/standin/standin.hpp), seen from ranks that call it.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "base/element.hpp"
#include "support/standin/test_programs.hpp"

namespace strata::test::standin {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One rank: its GPU, stream and communicator.
class RankProgram {
 public:
  RankProgram(int rank, int size, const ncclUniqueId& id, bool blocking) : rank_(rank) {
    expect_ok(cudaSetDevice(rank));
    stream_ = make_stream();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    result_ = until_settled(ncclCommInitRankConfig(&comm_, size, id, rank, &config));
  }
  ~RankProgram() {
    expect_ok(cudaStreamSynchronize(stream_));
    if (comm_ != nullptr) {
      expect_ok(until_settled(ncclCommFinalize(comm_)));
      destroy();
    }
    expect_ok(cudaStreamDestroy(stream_));
  }
  RankProgram(const RankProgram&) = delete;
  RankProgram& operator=(const RankProgram&) = delete;

  ncclResult_t until_settled(ncclResult_t result) {
    while (result == ncclInProgress) {
      ++polls_;
      expect_ok(ncclCommGetAsyncError(comm_, &result));
      std::this_thread::yield();
    }
    return result;
  }

  void abort() {
    expect_ok(ncclCommAbort(comm_));
    comm_ = nullptr;
  }
  void destroy() {
    expect_ok(ncclCommDestroy(comm_));
    comm_ = nullptr;
  }

  int rank() const { return rank_; }
  int polls() const { return polls_; }
  ncclResult_t result() const { return result_; }
  cudaStream_t stream() const { return stream_; }
  ncclComm_t comm() const { return comm_; }

 private:
  const int rank_;
  int polls_ = 0;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  ncclResult_t result_ = ncclSuccess;
};

ncclUniqueId make_id() {
  ncclUniqueId id;
  expect_ok(ncclGetUniqueId(&id));
  return id;
}

void run_ranks(int size, bool blocking, const std::function<void(RankProgram&)>& test) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RankProgram program(rank, size, id, blocking);
      expect_ok(program.result());
      test(program);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct NcclWorld {
  int size = 2;
  bool blocking = true;
};

class StandinNccl : public Standin, public ::testing::WithParamInterface<NcclWorld> {
 protected:
  void run(const std::function<void(RankProgram&)>& test) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      configure({.devices = size(),
                 .memory = 1_MiB,
                 .seed = seed,
                 .policy = seed % 2 == 0 ? DemandPolicy::as_late_as_possible : DemandPolicy::random,
                 .patience = std::chrono::milliseconds(2)});
      run_ranks(size(), GetParam().blocking, test);
      EXPECT_THAT(finish(), IsEmpty());
    }
  }
  static int size() { return GetParam().size; }
};

INSTANTIATE_TEST_SUITE_P(Ranks, StandinNccl,
                         ::testing::Values(NcclWorld{1, true}, NcclWorld{2, true},
                                           NcclWorld{2, false}, NcclWorld{4, true},
                                           NcclWorld{4, false}),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", instance.param.size,
                                              instance.param.blocking ? "blocking" : "polling");
                         });

std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(100 * rank) + i;
  return values;
}

float sum_at(int size, std::size_t i) {
  const int pairs = size * (size - 1) / 2;
  return static_cast<float>(100 * pairs) + static_cast<float>(size) * i;
}

TEST_P(StandinNccl, Gathers) {
  run([](RankProgram& rank) {
    constexpr std::size_t kShard = 5;
    const auto all = static_cast<std::size_t>(size()) * kShard;
    float* const memory = make_memory(all);
    float* const shard = make_memory(kShard);
    const auto check = [&] {
      const std::vector<float> gathered = download(rank.stream(), memory, all);
      for (int from = 0; from < size(); ++from) {
        for (std::size_t i = 0; i < kShard; ++i) {
          EXPECT_EQ(gathered[static_cast<std::size_t>(from) * kShard + i],
                    values_of(from, i + 1)[i]);
        }
      }
    };
    upload(rank.stream(), shard, values_of(rank.rank(), kShard));
    expect_ok(rank.until_settled(
        ncclAllGather(shard, memory, kShard, ncclFloat32, rank.comm(), rank.stream())));
    check();
    expect_ok(cudaMemsetAsync(memory, 0, all * sizeof(float), rank.stream()));
    float* const mine = memory + static_cast<std::size_t>(rank.rank()) * kShard;
    expect_ok(cudaMemcpyAsync(mine, shard, kShard * 4, cudaMemcpyDeviceToDevice, rank.stream()));
    expect_ok(rank.until_settled(
        ncclAllGather(mine, memory, kShard, ncclFloat32, rank.comm(), rank.stream())));
    check();
    expect_ok(cudaFree(memory));
    expect_ok(cudaFree(shard));
  });
}

TEST_P(StandinNccl, ReducesAndScatters) {
  run([](RankProgram& rank) {
    constexpr std::size_t kShard = 5;
    const auto all = static_cast<std::size_t>(size()) * kShard;
    const auto first = static_cast<std::size_t>(rank.rank()) * kShard;
    float* const memory = make_memory(all);
    float* const shard = make_memory(kShard);
    upload(rank.stream(), memory, values_of(rank.rank(), all));
    for (float* const out : {shard, memory + first}) {
      expect_ok(rank.until_settled(ncclReduceScatter(memory, out, kShard, ncclFloat32, ncclSum,
                                                     rank.comm(), rank.stream())));
      const std::vector<float> sums = download(rank.stream(), out, kShard);
      for (std::size_t i = 0; i < kShard; ++i) EXPECT_EQ(sums[i], sum_at(size(), first + i));
    }
    expect_ok(cudaFree(memory));
    expect_ok(cudaFree(shard));
  });
}

TEST_P(StandinNccl, ReducesForAll) {
  run([](RankProgram& rank) {
    float* const memory = make_memory(7);
    upload(rank.stream(), memory, values_of(rank.rank(), 7));
    expect_ok(rank.until_settled(
        ncclAllReduce(memory, memory, 7, ncclFloat32, ncclSum, rank.comm(), rank.stream())));
    const std::vector<float> sums = download(rank.stream(), memory, 7);
    for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(sums[i], sum_at(size(), i));

    auto* const counts = make_memory<std::int64_t>(2);
    upload<std::int64_t>(rank.stream(), counts, {rank.rank(), -rank.rank()});
    expect_ok(rank.until_settled(
        ncclAllReduce(counts, counts, 2, ncclInt64, ncclMax, rank.comm(), rank.stream())));
    EXPECT_THAT(download(rank.stream(), counts, 2), ElementsAre(size() - 1, 0));
    expect_ok(cudaFree(memory));
    expect_ok(cudaFree(counts));
  });
}

TEST_P(StandinNccl, RoundsOnceToHalfTypes) {
  run([](RankProgram& rank) {
    // 256 + 1 + 1 + ...: each step rounded to bf16 would lose every 1.
    auto* const memory = make_memory<std::uint16_t>(1);
    const float mine = rank.rank() == 0 ? 256 : 1;
    upload<std::uint16_t>(rank.stream(), memory, {element::from_float<element::Bf16>(mine).bits});
    expect_ok(rank.until_settled(
        ncclAllReduce(memory, memory, 1, ncclBfloat16, ncclSum, rank.comm(), rank.stream())));
    const float exact = 255 + static_cast<float>(size());
    EXPECT_EQ(download(rank.stream(), memory, 1)[0],
              element::from_float<element::Bf16>(exact).bits);
    expect_ok(cudaFree(memory));
  });
}

TEST_P(StandinNccl, Broadcasts) {
  run([](RankProgram& rank) {
    const int root = size() - 1;
    float* const memory = make_memory(4);
    upload(rank.stream(), memory, values_of(rank.rank(), 4));
    const void* const send = rank.rank() == root ? memory : nullptr;
    expect_ok(rank.until_settled(
        ncclBroadcast(send, memory, 4, ncclFloat32, root, rank.comm(), rank.stream())));
    EXPECT_EQ(download(rank.stream(), memory, 4), values_of(root, 4));
    expect_ok(cudaFree(memory));
  });
}

TEST_P(StandinNccl, Groups) {
  run([](RankProgram& rank) {
    float* const sums = make_memory(4);
    float* const copies = make_memory(4);
    upload(rank.stream(), sums, values_of(rank.rank(), 4));
    upload(rank.stream(), copies, values_of(rank.rank(), 4));
    const std::uint64_t before = works();
    expect_ok(ncclGroupStart());
    expect_ok(ncclGroupStart());
    expect_ok(ncclAllReduce(sums, sums, 4, ncclFloat32, ncclSum, rank.comm(), rank.stream()));
    expect_ok(ncclGroupEnd());
    expect_ok(ncclBroadcast(copies, copies, 4, ncclFloat32, 0, rank.comm(), rank.stream()));
    if (size() == 1) {
      EXPECT_EQ(works(), before);
    }
    expect_ok(rank.until_settled(ncclGroupEnd()));
    if (size() == 1) {
      EXPECT_EQ(works(), before + 2);
    }
    EXPECT_EQ(download(rank.stream(), sums, 4)[3], sum_at(size(), 3));
    EXPECT_EQ(download(rank.stream(), copies, 4), values_of(0, 4));
    expect_ok(cudaFree(sums));
    expect_ok(cudaFree(copies));
  });
}

TEST_P(StandinNccl, KnowsItsRanks) {
  run([](RankProgram& rank) {
    int value = -1;
    expect_ok(ncclCommCount(rank.comm(), &value));
    EXPECT_EQ(value, size());
    expect_ok(ncclCommUserRank(rank.comm(), &value));
    EXPECT_EQ(value, rank.rank());
    expect_ok(ncclCommCuDevice(rank.comm(), &value));
    EXPECT_EQ(value, rank.rank());
    expect_ok(ncclGetVersion(&value));
    EXPECT_EQ(value, NCCL_VERSION_CODE);
  });
}

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
