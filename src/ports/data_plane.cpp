#include "ports/data_plane.hpp"

namespace strata {

void run_on(DataPlane& plane, const Collective& collective, std::uint32_t ranks) {
  switch (collective.op) {
    case CollectiveOp::all_gather:
    case CollectiveOp::reduce_scatter:
      for (const ShardedBuffer& buffer : collective.buffers) {
        const std::uint64_t shard_bytes = buffer.shard_elems * size_of(buffer.dtype).value;
        const Shards shards{static_cast<std::byte*>(buffer.data), shard_bytes, shard_bytes * ranks,
                            buffer.dtype};
        collective.op == CollectiveOp::all_gather ? plane.all_gather(shards)
                                                  : plane.reduce_scatter(shards);
      }
      return;
    case CollectiveOp::broadcast:
      return plane.broadcast(collective.data, collective.size.value, collective.root.value);
    case CollectiveOp::all_reduce: {
      const std::uint64_t elem_bytes = size_of(collective.dtype).value;
      const std::uint64_t part_elems = (collective.size.value / elem_bytes + ranks - 1) / ranks;
      const Shards parts{collective.data, part_elems * elem_bytes, collective.size.value,
                         collective.dtype};
      plane.reduce_scatter(parts);
      plane.all_gather(parts);
      return;
    }
  }
}

}  // namespace strata
