// What the stand-in promises of NCCL (support/standin/standin.hpp), seen from ranks that call it.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "base/element.hpp"
#include "support/standin/test_nccl.hpp"

namespace strata::test::standin {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace strata::test::standin
