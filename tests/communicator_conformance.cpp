#include "communicator_conformance.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <set>

#include "support/error_of.hpp"
#include "support/pinned.hpp"
#include "support/wire_values.hpp"

namespace strata::test {
namespace {

using testing::HasSubstr;

constexpr std::array kDTypes = {DType::fp32, DType::bf16, DType::fp16};
constexpr std::array<std::uint64_t, 6> kShardSizes = {0, 1, 63, 1023, 4096, kLargeElems};
constexpr std::byte kGuard{0xA5};
constexpr std::uint64_t kGuardBytes = 256;

// One rank's buffers in the arena, each between guard bytes. Moves values in and out by copies on
// the stream, so that everything stays in stream order.
class Bench {
 public:
  explicit Bench(RankContext& context)
      : device(context.device),
        communicator(context.communicator),
        stream(device.create_stream("test")) {}

  // Copies may be under way; a device that has failed is done with them.
  ~Bench() {
    for (const StreamId used : used_streams_) {
      try {
        device.synchronize(device.record(used));
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // An arena range that holds `bytes`.
  void* place(const std::vector<std::byte>& bytes) { return place_on(stream, bytes); }

  void* place_on(StreamId on, const std::vector<std::byte>& bytes) {
    std::vector<std::byte> framed(2 * kGuardBytes + bytes.size(), kGuard);
    std::copy(bytes.begin(), bytes.end(), framed.begin() + kGuardBytes);
    Pinned& image = images_.emplace_back(device, std::move(framed));
    used_streams_.insert(on);
    std::byte* const start = device.arena().data() + used_;
    used_ += round_up(image.size(), kGuardBytes);
    EXPECT_LE(used_, device.arena().size());
    device.copy(on, start, image.data(), Bytes{image.size()}, CopyKind::host_to_device);
    return start + kGuardBytes;
  }

  // The bytes of a range that place() returned; checks its guards.
  std::vector<std::byte> read(const void* data, std::uint64_t size) {
    return read_on(stream, data, size);
  }

  std::vector<std::byte> read_on(StreamId on, const void* data, std::uint64_t size) {
    Pinned pinned(device, std::vector<std::byte>(2 * kGuardBytes + size));
    device.copy(on, pinned.data(), static_cast<const std::byte*>(data) - kGuardBytes,
                Bytes{pinned.size()}, CopyKind::device_to_host);
    device.synchronize(device.record(on));
    const std::vector<std::byte>& image = pinned.bytes();
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    EXPECT_TRUE(std::all_of(image.begin(), image.begin() + kGuardBytes, is_guard));
    EXPECT_TRUE(std::all_of(image.end() - kGuardBytes, image.end(), is_guard));
    return {image.begin() + kGuardBytes, image.end() - kGuardBytes};
  }

  void wait() { device.synchronize(device.record(stream)); }

  // Forgets the buffers; what was enqueued must have run.
  void reset() {
    wait();
    images_.clear();
    used_ = 0;
  }

  std::uint32_t rank() const { return communicator.rank().value; }
  std::uint32_t size() const { return communicator.size(); }

  Device& device;
  Communicator& communicator;
  StreamId stream;

 private:
  std::deque<Pinned> images_;
  std::set<StreamId> used_streams_;
  std::uint64_t used_ = 0;
};

// What rank `rank` puts into element `index` of buffer `key`.
std::uint32_t input_of(std::uint64_t key, std::uint32_t rank, std::uint64_t index, DType dtype) {
  return random_wire(dtype, key * 1000 + rank, index);
}

std::vector<std::byte> full_input(std::uint64_t key, std::uint32_t rank, std::uint64_t count,
                                  DType dtype) {
  std::vector<std::byte> bytes(count * size_of(dtype).value);
  for (std::uint64_t i = 0; i < count; ++i) {
    store_wire(bytes, i, input_of(key, rank, i, dtype), dtype);
  }
  return bytes;
}

// Own shard as input, 0xFF elsewhere.
std::vector<std::byte> shard_input(std::uint64_t key, std::uint32_t rank, std::uint32_t size,
                                   std::uint64_t shard, DType dtype) {
  std::vector<std::byte> bytes(shard * size * size_of(dtype).value, std::byte{0xFF});
  for (std::uint64_t i = rank * shard; i < (rank + 1) * shard; ++i) {
    store_wire(bytes, i, input_of(key, rank, i, dtype), dtype);
  }
  return bytes;
}

void expect_gathered(const std::vector<std::byte>& bytes, std::uint64_t key, std::uint32_t size,
                     std::uint64_t shard, DType dtype) {
  std::vector<std::byte> expected(bytes.size());
  for (std::uint64_t i = 0; i < shard * size; ++i) {
    const auto owner = static_cast<std::uint32_t>(i / shard);
    store_wire(expected, i, input_of(key, owner, i, dtype), dtype);
  }
  EXPECT_TRUE(bytes == expected) << name_of(dtype) << " shards of " << shard;
}

// Elements [begin, end) of `bytes` are the sums over ranks; stops at the first that is not.
void expect_summed(const std::vector<std::byte>& bytes, std::uint64_t key, std::uint32_t size,
                   std::uint64_t begin, std::uint64_t end, DType dtype) {
  std::vector<std::uint32_t> inputs(size);
  for (std::uint64_t i = begin; i < end; ++i) {
    for (std::uint32_t r = 0; r < size; ++r) inputs[r] = input_of(key, r, i, dtype);
    const double actual = decode_wire(load_wire(bytes, i, dtype), dtype);
    ASSERT_EQ(actual, expected_sum(inputs, dtype)) << name_of(dtype) << " element " << i;
  }
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST_P(CommunicatorConformance, RanksAreNumberedAndKnowTheirHost) {
  GetParam().on_every_rank([](RankContext& context) {
    Communicator& communicator = context.communicator;
    ASSERT_LT(communicator.rank().value, communicator.size());
    ASSERT_LT(communicator.host_rank().value, communicator.host_size());
    ASSERT_LE(communicator.host_size(), communicator.size());
    const std::uint32_t mine = communicator.rank().value;
    const auto all = communicator.exchange(std::as_bytes(std::span(&mine, 1)));
    ASSERT_EQ(all.size(), communicator.size() * sizeof(mine));
    for (std::uint32_t r = 0; r < communicator.size(); ++r) {
      std::uint32_t theirs = 0;
      std::memcpy(&theirs, all.data() + r * sizeof(theirs), sizeof(theirs));
      EXPECT_EQ(theirs, r);
    }
    EXPECT_FALSE(communicator.failure());
  });
}

TEST_P(CommunicatorConformance, AllGatherBringsEveryShardToEveryRank) {
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    for (const DType dtype : kDTypes) {
      for (const std::uint64_t shard : kShardSizes) {
        const auto input = shard_input(1, bench.rank(), bench.size(), shard, dtype);
        const ShardedBuffer buffer{bench.place(input), shard, dtype};
        bench.communicator.all_gather(bench.stream, {&buffer, 1});
        expect_gathered(bench.read(buffer.data, input.size()), 1, bench.size(), shard, dtype);
        bench.reset();
      }
    }
    EXPECT_FALSE(bench.communicator.failure());
  });
}

TEST_P(CommunicatorConformance, ReduceScatterSumsInRankOrderAndRoundsOnce) {
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    for (const DType dtype : kDTypes) {
      for (const std::uint64_t shard : kShardSizes) {
        const auto input = full_input(2, bench.rank(), shard * bench.size(), dtype);
        const ShardedBuffer buffer{bench.place(input), shard, dtype};
        bench.communicator.reduce_scatter(bench.stream, {&buffer, 1});
        expect_summed(bench.read(buffer.data, input.size()), 2, bench.size(), bench.rank() * shard,
                      (bench.rank() + 1) * shard, dtype);
        bench.reset();
      }
    }
    EXPECT_FALSE(bench.communicator.failure());
  });
}

TEST_P(CommunicatorConformance, AllReduceGivesEveryRankTheSameSums) {
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    for (const DType dtype : kDTypes) {
      for (const std::uint64_t count : {0, 1, 2, 3, 5, 1023, 200'001}) {
        const auto input = full_input(3, bench.rank(), count, dtype);
        void* const data = bench.place(input);
        bench.communicator.all_reduce(bench.stream, data, count, dtype);
        expect_summed(bench.read(data, input.size()), 3, bench.size(), 0, count, dtype);
        bench.reset();
      }
    }
    EXPECT_FALSE(bench.communicator.failure());
  });
}

TEST_P(CommunicatorConformance, BroadcastCopiesFromAnyRoot) {
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    for (std::uint32_t root = 0; root < bench.size(); ++root) {
      for (const std::uint64_t count :
           {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{777}, kLargeElems}) {
        const auto input = full_input(4 + root, bench.rank(), count, DType::fp32);
        void* const data = bench.place(input);
        bench.communicator.broadcast(bench.stream, data, Bytes{input.size()}, Rank{root});
        EXPECT_TRUE(bench.read(data, input.size()) ==
                    full_input(4 + root, root, count, DType::fp32));
        bench.reset();
      }
    }
    EXPECT_FALSE(bench.communicator.failure());
  });
}

TEST_P(CommunicatorConformance, BuffersOfOneCallTravelTogether) {
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    constexpr std::array<std::uint64_t, 5> kShards = {17, 0, kLargeElems, 1, 4096};
    std::vector<ShardedBuffer> gathered;
    std::vector<ShardedBuffer> summed;
    for (std::size_t i = 0; i < kShards.size(); ++i) {
      const DType dtype = kDTypes[i % kDTypes.size()];
      gathered.push_back(
          {bench.place(shard_input(10 + i, bench.rank(), bench.size(), kShards[i], dtype)),
           kShards[i], dtype});
      summed.push_back(
          {bench.place(full_input(20 + i, bench.rank(), kShards[i] * bench.size(), dtype)),
           kShards[i], dtype});
    }
    bench.communicator.all_gather(bench.stream, gathered);
    bench.communicator.reduce_scatter(bench.stream, summed);
    bench.communicator.all_gather(bench.stream, {});
    for (std::size_t i = 0; i < kShards.size(); ++i) {
      const DType dtype = gathered[i].dtype;
      const std::uint64_t bytes = kShards[i] * bench.size() * size_of(dtype).value;
      expect_gathered(bench.read(gathered[i].data, bytes), 10 + i, bench.size(), kShards[i], dtype);
      expect_summed(bench.read(summed[i].data, bytes), 20 + i, bench.size(),
                    bench.rank() * kShards[i], (bench.rank() + 1) * kShards[i], dtype);
    }
  });
}

TEST_P(CommunicatorConformance, CollectivesKeepTheirOrderAcrossStreams) {
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    const std::array streams = {bench.stream, bench.device.create_stream("second")};
    std::vector<ShardedBuffer> buffers;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::uint64_t shard = 1 + i * 37;
      // Ranks load their streams differently; only the order of the calls is the same.
      const StreamId stream = streams[(i * 7 / 3) % 2];
      const auto input = full_input(50 + i, bench.rank(), shard * bench.size(), DType::bf16);
      buffers.push_back({bench.place_on(stream, input), shard, DType::bf16});
      bench.communicator.reduce_scatter(stream, {&buffers.back(), 1});
    }
    for (std::uint64_t i = 0; i < buffers.size(); ++i) {
      const std::uint64_t shard = buffers[i].shard_elems;
      const auto bytes =
          bench.read_on(streams[(i * 7 / 3) % 2], buffers[i].data, 2 * shard * bench.size());
      expect_summed(bytes, 50 + i, bench.size(), bench.rank() * shard, (bench.rank() + 1) * shard,
                    DType::bf16);
    }
  });
}

TEST_P(CommunicatorConformance, RandomSequencesOfCollectivesAreRight) {
  constexpr std::uint64_t kSeed = 20260;
  SCOPED_TRACE(kSeed);
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    for (std::uint64_t i = 0; i < 120; ++i) {
      const std::uint64_t draw = rng::at(kSeed, i);
      const std::uint64_t shard = (draw >> 8) % ((draw & 0x10U) != 0 ? 20'000 : 40);
      const DType dtype = kDTypes[(draw >> 32) % kDTypes.size()];
      const std::uint64_t bytes = shard * bench.size() * size_of(dtype).value;
      if ((draw & 1U) != 0) {
        const ShardedBuffer buffer{
            bench.place(shard_input(i, bench.rank(), bench.size(), shard, dtype)), shard, dtype};
        bench.communicator.all_gather(bench.stream, {&buffer, 1});
        expect_gathered(bench.read(buffer.data, bytes), i, bench.size(), shard, dtype);
      } else {
        void* const data = bench.place(full_input(i, bench.rank(), shard * bench.size(), dtype));
        bench.communicator.all_reduce(bench.stream, data, shard * bench.size(), dtype);
        expect_summed(bench.read(data, bytes), i, bench.size(), 0, shard * bench.size(), dtype);
      }
      bench.reset();
    }
  });
}

TEST_P(CommunicatorConformance, ExchangeCarriesAnySizeUpToItsLimit) {
  GetParam().on_every_rank([](RankContext& context) {
    Communicator& communicator = context.communicator;
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{5000}, Communicator::kMaxExchange}) {
      std::vector<std::byte> expected;
      for (std::uint32_t r = 0; r < communicator.size(); ++r) {
        expected.insert(expected.end(), size, static_cast<std::byte>(r + 1));
      }
      const std::vector<std::byte> mine(size,
                                        static_cast<std::byte>(communicator.rank().value + 1));
      EXPECT_TRUE(communicator.exchange(mine) == expected) << size;
    }
  });
}

TEST_P(CommunicatorConformance, AgreeNamesTheRanksThatDiffer) {
  GetParam().on_every_rank([](RankContext& context) {
    Communicator& communicator = context.communicator;
    communicator.agree(bytes_of("the same"), "the plan");
    if (communicator.size() == 1) return;
    const bool last = communicator.rank().value + 1 == communicator.size();
    try {
      communicator.agree(bytes_of(last ? "plan B" : "plan A"), "the plan");
      ADD_FAILURE() << "ranks that differ agreed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::diverged);
      EXPECT_THAT(error.what(), HasSubstr("the plan"));
      EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(communicator.size() - 1)));
    }
    communicator.agree(bytes_of("still in step"), "the plan");
  });
}

TEST_P(CommunicatorConformance, SplitMakesOrderedGroups) {
  GetParam().on_every_rank([](RankContext& context) {
    Bench bench(context);
    const std::uint32_t rank = bench.rank();
    // Even and odd ranks, each in reverse order.
    const std::uint32_t color = rank % 2 == 0 ? 0xFFFFFFFFU : 7U;
    const auto half = bench.communicator.split(color, bench.size() - rank);
    std::vector<std::uint32_t> members;
    for (std::uint32_t r = rank % 2; r < bench.size(); r += 2) members.push_back(r);
    std::reverse(members.begin(), members.end());
    ASSERT_EQ(half->size(), members.size());
    ASSERT_EQ(members[half->rank().value], rank);

    // The parts and the whole work side by side.
    const std::uint64_t shard = 1000;
    const auto input =
        shard_input(60 + color % 5, half->rank().value, half->size(), shard, DType::bf16);
    const ShardedBuffer part{bench.place(input), shard, DType::bf16};
    void* const whole = bench.place(full_input(70, rank, 501, DType::fp32));
    half->all_gather(bench.stream, {&part, 1});
    bench.communicator.all_reduce(bench.stream, whole, 501, DType::fp32);
    expect_gathered(bench.read(part.data, input.size()), 60 + color % 5, half->size(), shard,
                    DType::bf16);
    expect_summed(bench.read(whole, 501 * 4), 70, bench.size(), 0, 501, DType::fp32);
  });
}

TEST_P(CommunicatorConformance, EqualKeysSplitInRankOrder) {
  GetParam().on_every_rank([](RankContext& context) {
    const auto all = context.communicator.split(3, 3);
    EXPECT_EQ(all->rank(), context.communicator.rank());
    EXPECT_EQ(all->size(), context.communicator.size());
    const auto alone = context.communicator.split(context.communicator.rank().value, 0);
    EXPECT_EQ(alone->size(), 1U);
    EXPECT_EQ(alone->exchange(bytes_of("me")), bytes_of("me"));
  });
}

// The failures below need a peer.
void need_peers(RankContext& context, const RankTest& body) {
  if (context.communicator.size() > 1) body(context);
}

void enqueue_gather(Bench& bench) {
  const ShardedBuffer buffer{
      bench.place(shard_input(1, bench.rank(), bench.size(), 1000, DType::bf16)), 1000,
      DType::bf16};
  bench.communicator.all_gather(bench.stream, {&buffer, 1});
}

void expect_failure_at_once(Bench& bench, std::string_view text) {
  bench.wait();
  const auto failure = bench.communicator.failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code(), ErrorCode::rank_lost) << failure->what();
  EXPECT_THAT(failure->what(), HasSubstr(std::string(text)));
  // What is enqueued later returns at once, whatever the timeout.
  bench.communicator.set_timeout(std::chrono::hours(1));
  enqueue_gather(bench);
  bench.wait();
  EXPECT_STREQ(bench.communicator.failure()->what(), failure->what()) << "the first error wins";
}

TEST_P(CommunicatorFailures, ExchangeOfDifferentSizesDiverges) {
  GetParam().on_every_rank([](RankContext& all) {
    need_peers(all, [](RankContext& context) {
      const std::string mine(1 + context.communicator.rank().value, 'x');
      const Error error = error_of([&] { context.communicator.exchange(bytes_of(mine)); });
      EXPECT_EQ(error.code(), ErrorCode::diverged) << error.what();
    });
  });
}

TEST_P(CommunicatorFailures, DifferentCallsDiverge) {
  GetParam().on_every_rank([](RankContext& all) {
    need_peers(all, [](RankContext& context) {
      const bool first = context.communicator.rank().value == 0;
      const std::array<std::uint32_t, 2> same_size = {1, 2};
      const Error error = error_of([&] {
        if (first) {
          context.communicator.split(1, 2);
        } else {
          context.communicator.exchange(std::as_bytes(std::span(same_size)));
        }
      });
      EXPECT_EQ(error.code(), ErrorCode::diverged) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("split"));
      EXPECT_THAT(error.what(), HasSubstr("exchange"));
    });
  });
}

TEST_P(CommunicatorFailures, AbortEndsAPeersExchange) {
  GetParam().on_every_rank([](RankContext& all) {
    need_peers(all, [](RankContext& context) {
      Communicator& communicator = context.communicator;
      if (communicator.rank().value == 0) communicator.abort("the disk is full");
      const Error error = error_of([&] { communicator.exchange(bytes_of("?")); });
      EXPECT_EQ(error.code(), ErrorCode::rank_lost);
      EXPECT_THAT(error.what(), HasSubstr("the disk is full"));
    });
  });
}

TEST_P(CommunicatorFailures, AbortEndsAPeersCollective) {
  GetParam().on_every_rank([](RankContext& all) {
    need_peers(all, [](RankContext& context) {
      Bench bench(context);
      if (bench.rank() == 0) bench.communicator.abort("the disk is full");
      enqueue_gather(bench);
      expect_failure_at_once(bench, "the disk is full");
    });
  });
}

TEST_P(CommunicatorFailures, ACollectiveTimesOutAndNamesTheRank) {
  GetParam().on_every_rank([](RankContext& all) {
    need_peers(all, [](RankContext& context) {
      Bench bench(context);
      if (bench.rank() == 0) {
        // Stays away from the collective, until the others have told that they gave it up.
        const Error error = error_of([&] { bench.communicator.exchange(bytes_of("?")); });
        EXPECT_EQ(error.code(), ErrorCode::rank_lost);
        EXPECT_THAT(error.what(), HasSubstr("gave up"));
        return;
      }
      bench.communicator.set_timeout(std::chrono::milliseconds(150));
      enqueue_gather(bench);
      expect_failure_at_once(bench, "rank 0");
    });
  });
}

TEST_P(CommunicatorFailures, AnExchangeTimesOutAndNamesTheRank) {
  GetParam().on_every_rank([](RankContext& all) {
    need_peers(all, [](RankContext& context) {
      Bench bench(context);
      if (bench.rank() == 0) {
        enqueue_gather(bench);
        expect_failure_at_once(bench, "gave up");
        return;
      }
      bench.communicator.set_timeout(std::chrono::milliseconds(150));
      const Error error = error_of([&] { bench.communicator.exchange(bytes_of("?")); });
      EXPECT_EQ(error.code(), ErrorCode::rank_lost);
      EXPECT_THAT(error.what(), HasSubstr("rank 0"));
      // The ranks are out of step: later calls fail with the same error.
      bench.communicator.set_timeout(std::chrono::hours(1));
      const Error again = error_of([&] { bench.communicator.exchange(bytes_of("?")); });
      EXPECT_STREQ(again.what(), error.what());
    });
  });
}

TEST_P(CommunicatorFailures, ARankThatClosesEarlyIsNamed) {
  GetParam().on_every_rank([](RankContext& all) {
    need_peers(all, [](RankContext& context) {
      if (context.communicator.rank().value == 0) return;
      Bench bench(context);
      enqueue_gather(bench);
      expect_failure_at_once(bench, "rank 0");
    });
  });
}

}  // namespace
}  // namespace strata::test
