#include "support/in_process_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>

#include "base/check.hpp"
#include "base/reduce.hpp"
#include "base/rng.hpp"
#include "ports/host_communicator.hpp"
#include "support/in_process_group.hpp"

namespace strata::test {
namespace {

// Uneven parts of one buffer, one per rank; the last may be short or empty.
struct Part {
  std::uint64_t begin_elems = 0;
  std::uint64_t count_elems = 0;
};

Part part_of(std::uint64_t count_elems, std::uint32_t size, std::uint32_t rank) {
  const std::uint64_t step = (count_elems + size - 1) / size;
  const std::uint64_t begin = std::min(rank * step, count_elems);
  return {begin, std::min(step, count_elems - begin)};
}

class InProcessCommunicator final : public HostCommunicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessGroup> group, std::uint32_t rank)
      : group_(std::move(group)), rank_(rank), inputs_(group_->size()) {}

  ~InProcessCommunicator() override {
    drain();
    group_->depart(rank_);
  }

  std::string_view name() const override { return "in-process"; }
  Rank rank() const override { return Rank{rank_}; }
  std::uint32_t size() const override { return group_->size(); }
  Rank host_rank() const override { return rank(); }
  std::uint32_t host_size() const override { return size(); }
  Bytes staging_bytes() const override { return Bytes{0}; }

  void attach(Device& device) override {
    set_device(device);
    call("attach", {});
  }

  std::unique_ptr<Communicator> split(std::uint32_t color, std::uint32_t key) override;

  std::vector<std::byte> exchange(std::span<const std::byte> mine) override {
    STRATA_ASSERT(mine.size() <= kMaxExchange, "exchange() is for small messages");
    return call("exchange", mine);
  }

  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ms_ = timeout.count(); }

  void abort(std::string_view reason) override {
    failure_.record(Error(ErrorCode::rank_lost, fmt::format("this rank gave up: {}", reason),
                          {.rank = rank()}));
    group_->give_up(rank_, reason);
  }

 protected:
  void run(const Collective& collective) override;
  void on_first_failure(const Error& error) override { group_->give_up(rank_, error.what()); }

 private:
  Attendance attendance(std::string_view what, bool moves_bytes_after) {
    disturb();
    return {rank_, what, std::chrono::milliseconds(timeout_ms_), &failure_, moves_bytes_after};
  }

  // A seeded delay: none for half of the calls, else up to 200 us.
  void disturb() {
    const double chance = rng::uniform(group_->seed() + rank_, draws_++);
    if (chance < 0.5) return;
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(400 * (chance - 0.5)));
  }

  std::vector<std::byte> call(std::string_view which, std::span<const std::byte> mine);
  void all_gather_now(const Collective& collective);
  void reduce_scatter_now(const Collective& collective);
  void broadcast_now(const Collective& collective);
  void all_reduce_now(const Collective& collective);

  const std::shared_ptr<InProcessGroup> group_;
  const std::uint32_t rank_;
  std::atomic<std::int64_t> timeout_ms_ = 60'000;
  std::atomic<std::uint64_t> draws_ = 0;
  std::uint64_t splits_ = 0;
  std::vector<const void*> inputs_;  // of one sum, by rank
};

std::vector<std::byte> InProcessCommunicator::call(std::string_view which,
                                                   std::span<const std::byte> mine) {
  try {
    failure_.throw_if_set();
    const auto& messages =
        group_->meet(attendance(which, false), {which, {mine.begin(), mine.end()}});
    std::vector<std::byte> all;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (messages[peer].call != which || messages[peer].bytes.size() != mine.size()) {
        throw Error(ErrorCode::diverged,
                    fmt::format("rank {} is in {}() with {} bytes while rank {} is in {}() with {}",
                                peer, messages[peer].call, messages[peer].bytes.size(), rank_,
                                which, mine.size()),
                    {.rank = Rank{peer}});
      }
      all.insert(all.end(), messages[peer].bytes.begin(), messages[peer].bytes.end());
    }
    return all;
  } catch (const Error& error) {
    fail(error);
    throw;
  }
}

std::unique_ptr<Communicator> InProcessCommunicator::split(std::uint32_t color, std::uint32_t key) {
  struct Choice {
    std::uint32_t color;
    std::uint32_t key;
  };
  const Choice mine{color, key};
  const std::vector<std::byte> bytes = call("split", std::as_bytes(std::span(&mine, 1)));
  std::vector<Choice> choices(size());
  std::memcpy(choices.data(), bytes.data(), bytes.size());
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (choices[peer].color == color) ranks.push_back(peer);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::uint32_t a, std::uint32_t b) {
    return choices[a].key < choices[b].key;
  });
  const auto position = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  auto half = std::make_unique<InProcessCommunicator>(group_->part(splits_++, color, ranks),
                                                      static_cast<std::uint32_t>(position));
  half->timeout_ms_ = timeout_ms_.load();
  if (device() != nullptr) half->set_device(*device());
  return half;
}

void InProcessCommunicator::run(const Collective& collective) {
  switch (collective.op) {
    case CollectiveOp::all_gather: return all_gather_now(collective);
    case CollectiveOp::reduce_scatter: return reduce_scatter_now(collective);
    case CollectiveOp::broadcast: return broadcast_now(collective);
    case CollectiveOp::all_reduce: return all_reduce_now(collective);
  }
}

void InProcessCommunicator::all_gather_now(const Collective& collective) {
  const auto& peers = group_->meet(attendance("all_gather", true), &collective);
  for (std::size_t i = 0; i < collective.buffers.size(); ++i) {
    const ShardedBuffer& buffer = collective.buffers[i];
    const std::uint64_t shard = buffer.shard_elems * size_of(buffer.dtype).value;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || shard == 0) continue;
      const auto* from = static_cast<const std::byte*>(peers[peer]->buffers[i].data);
      std::memcpy(static_cast<std::byte*>(buffer.data) + peer * shard, from + peer * shard, shard);
    }
  }
  group_->meet(attendance("all_gather", false), nullptr);
}

void InProcessCommunicator::reduce_scatter_now(const Collective& collective) {
  const auto& peers = group_->meet(attendance("reduce_scatter", true), &collective);
  for (std::size_t i = 0; i < collective.buffers.size(); ++i) {
    const ShardedBuffer& buffer = collective.buffers[i];
    const std::uint64_t offset = rank_ * buffer.shard_elems * size_of(buffer.dtype).value;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      inputs_[peer] = static_cast<const std::byte*>(peers[peer]->buffers[i].data) + offset;
    }
    sum_in_rank_order(static_cast<std::byte*>(buffer.data) + offset, inputs_, buffer.shard_elems,
                      buffer.dtype);
  }
  group_->meet(attendance("reduce_scatter", false), nullptr);
}

void InProcessCommunicator::broadcast_now(const Collective& collective) {
  const auto& peers = group_->meet(attendance("broadcast", true), &collective);
  if (collective.root.value != rank_ && collective.size > Bytes{0}) {
    std::memcpy(collective.data, peers[collective.root.value]->data, collective.size.value);
  }
  group_->meet(attendance("broadcast", false), nullptr);
}

void InProcessCommunicator::all_reduce_now(const Collective& collective) {
  const std::uint64_t elem_bytes = size_of(collective.dtype).value;
  const std::uint64_t count_elems = collective.size.value / elem_bytes;
  const auto& summing = group_->meet(attendance("all_reduce", true), &collective);
  const Part own = part_of(count_elems, size(), rank_);
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    inputs_[peer] = summing[peer]->data + own.begin_elems * elem_bytes;
  }
  sum_in_rank_order(collective.data + own.begin_elems * elem_bytes, inputs_, own.count_elems,
                    collective.dtype);
  const auto& gathering = group_->meet(attendance("all_reduce", true), &collective);
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    const Part part = part_of(count_elems, size(), peer);
    if (peer == rank_ || part.count_elems == 0) continue;
    const std::uint64_t begin = part.begin_elems * elem_bytes;
    std::memcpy(collective.data + begin, gathering[peer]->data + begin,
                part.count_elems * elem_bytes);
  }
  group_->meet(attendance("all_reduce", false), nullptr);
}

}  // namespace

InProcessWorld::InProcessWorld(std::uint32_t size, std::uint64_t seed) {
  std::vector<std::shared_ptr<InProcessMember>> members(size);
  for (auto& member : members) member = std::make_shared<InProcessMember>();
  group_ =
      std::make_shared<InProcessGroup>(std::make_shared<InProcessHub>(), std::move(members), seed);
}

std::unique_ptr<Communicator> InProcessWorld::communicator(Rank rank) {
  STRATA_ASSERT(rank.value < group_->size(), "a rank outside the world");
  return std::make_unique<InProcessCommunicator>(group_, rank.value);
}

void InProcessWorld::kill(Rank rank) { group_->kill(rank.value); }

void run_ranks(std::uint32_t size, const RankBody& body, std::uint64_t seed) {
  InProcessWorld world(size, seed);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  const auto live = [&](Rank rank) {
    const std::unique_ptr<Communicator> communicator = world.communicator(rank);
    try {
      body(rank, *communicator);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      communicator->abort(error.what());
    }
  };
  for (std::uint32_t rank = 0; rank < size; ++rank) threads.emplace_back(live, Rank{rank});
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace strata::test
