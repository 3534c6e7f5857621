// How the payload of collectives travels between ranks whose memory the CPU addresses: what every
// communicator of such ranks moves its bytes by. All implementations give equal bits.
//
// Thread: one collective at a time, from any thread. Blocks until this rank's part is done, and
// throws Error when a peer is lost; the plane must not be used after that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ports/host_communicator.hpp"
#include "strata/types.hpp"

namespace strata {

// One shard of `shard_bytes` for each rank, in rank order, cut off at `total_bytes`: the last
// shards may be short or empty. Shards are whole elements.
struct Shards {
  std::byte* data = nullptr;
  std::uint64_t shard_bytes = 0;
  std::uint64_t total_bytes = 0;
  DType dtype = DType::bf16;

  std::byte* at(std::uint32_t rank, std::uint64_t offset) const {
    return data + rank * shard_bytes + offset;
  }

  // Bytes of [offset, offset + limit) that shard `rank` really has.
  std::uint64_t piece(std::uint32_t rank, std::uint64_t offset, std::uint64_t limit) const {
    const std::uint64_t begin = std::min(rank * shard_bytes + offset, total_bytes);
    const std::uint64_t end =
        std::min(rank * shard_bytes + std::min(offset + limit, shard_bytes), total_bytes);
    return end > begin ? end - begin : 0;
  }

  // All that shard `rank` really has.
  std::span<std::byte> shard(std::uint32_t rank) const {
    return {data + std::min(rank * shard_bytes, total_bytes), piece(rank, 0, shard_bytes)};
  }
};

class DataPlane {
 public:
  virtual ~DataPlane() = default;

  // Every rank's own shard reaches every rank.
  virtual void all_gather(const Shards& shards) = 0;

  // This rank's own shard becomes the sum over all ranks; nothing else is written.
  virtual void reduce_scatter(const Shards& shards) = 0;

  virtual void broadcast(std::byte* data, std::uint64_t size_bytes, std::uint32_t root) = 0;

  // Host memory of this rank that payload is staged through.
  virtual Bytes staging_bytes() const = 0;
};

// Runs a collective of `ranks` ranks on `plane`, whose error it throws. An all-reduce is a
// reduce-scatter of near-equal parts and their all-gather, so that its bits are a reduce-scatter's.
void run_on(DataPlane& plane, const Collective& collective, std::uint32_t ranks);

}  // namespace strata
