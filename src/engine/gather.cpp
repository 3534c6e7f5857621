// Gathers: shard tiles from their homes into the unit's buffer on the device, then one all-gather.
#include <fmt/format.h>

#include "engine/engine.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata {

Task<Event> Engine::gather_task(UnitId unit) {
  UnitState& state = units_[unit.value];
  if (state.holders > 0) {
    ++state.holders;
    co_return state.ready;
  }
  require_gather_slot(unit);
  SlabSet slot = co_await gather_slots_.acquire(1);
  const std::span<std::byte> buffer =
      slot[0].first(gathered_bytes(g_.layout, g_.table, unit).value);
  device_.note_lease(buffer);

  const DType dtype = g_.table[kParamKind].dtype;
  const std::span<const ShardedBuffer> buffers = parameter_buffers(unit, buffer.data());
  TaskGroup tiles;
  const auto segments = g_.layout.segments_of(unit);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    auto* shard = static_cast<std::byte*>(buffers[i].data) +
                  g_.rank.value * buffers[i].shard_elems * size_of(dtype).value;
    for (std::uint32_t t = 0; t < g_.placement.tiles[segments[i]].size(); ++t) {
      const std::uint64_t begin = tile_of(segments[i], t).begin_elems;
      tiles.start(fetch_tile(segments[i], t, shard + begin * size_of(dtype).value));
    }
  }
  if (const std::exception_ptr error = co_await tiles.settle()) {
    std::vector<Event> copied = event_lists_.take();
    copied.push_back(device_.record(copy_in_stream_));
    background_.start(free_slot(std::move(copied), std::move(slot), buffer));
    std::rethrow_exception(error);
  }
  device_.wait(collective_stream_, device_.record(copy_in_stream_));
  communicator_.all_gather(collective_stream_, buffers);
  gathered_ += (g_.layout.group_size - 1) * buffer.size() / g_.layout.group_size;
  state.ready = device_.record(collective_stream_);
  state.buffer = buffer;
  state.slot = std::move(slot);
  state.holders = 1;
  ++live_units_;
  check_links();
  co_return state.ready;
}

void Engine::require_gather_slot(UnitId unit) const {
  if (live_units_ < g_.max_live_units) return;
  std::string live;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].holders == 0) continue;
    live += fmt::format("{}{} ({})", live.empty() ? "" : ", ", g_.layout.units[u].name,
                        format_bytes(Bytes{units_[u].buffer.size()}));
  }
  throw Error(
      ErrorCode::budget_exceeded,
      fmt::format("gather needs a {} slot on the device but all {} are held by live leases: "
                  "{}; end one first or raise engine.max_live_units",
                  format_bytes(g_.gather_slot), g_.max_live_units, live),
      {.unit = g_.layout.units[unit.value].name});
}

std::span<const ShardedBuffer> Engine::parameter_buffers(UnitId unit, std::byte* base) {
  return place_buffers(unit, base, g_.table[kParamKind].dtype, false,
                       units_[unit.value].parameter_buffers);
}

std::span<const ShardedBuffer> Engine::gradient_buffers(UnitId unit, std::byte* base) {
  return place_buffers(unit, base, g_.table.wire, true, units_[unit.value].gradient_buffers);
}

std::span<const ShardedBuffer> Engine::place_buffers(UnitId unit, std::byte* base, DType dtype,
                                                     bool trainable_only,
                                                     std::vector<ShardedBuffer>& buffers) const {
  buffers.clear();
  for (const std::uint32_t s : g_.layout.segments_of(unit)) {
    const Segment& segment = g_.layout.segments[s];
    if (trainable_only && !segment.trainable) continue;
    buffers.push_back({base, segment.shard_elems, dtype});
    const Bytes size = segment.shard_elems * g_.layout.group_size * size_of(dtype);
    base += round_up(size, kPieceAlign).value;
  }
  return buffers;
}

Task<> Engine::fetch_tile(std::uint32_t segment, std::uint32_t tile_index, std::byte* destination) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileHome& home = map_.tile(segment, tile_index).homes[kParamKind.value];
  const Bytes size = tile_bytes(tile, g_.table[kParamKind].dtype);
  switch (tile.home(kParamKind)) {
    case Tier::device:
      device_.copy(copy_in_stream_, destination, home.memory, size, CopyKind::device_to_device);
      break;
    case Tier::host: copy_in(copy_in_stream_, destination, home.memory, size); break;
    case Tier::nvme: {
      SlabSet slab = co_await gather_slabs_.acquire(1);
      co_await tile_io_.read(on_nvme(segment, tile_index, kParamKind, slab[0].data()),
                             IoPriority::gather);
      copy_in(copy_in_stream_, destination, slab[0].data(), size);
      background_.start(hold_until(device_.record(copy_in_stream_), std::move(slab)));
      break;
    }
  }
}

Task<> Engine::release_task(UnitId unit, LastUses last_uses) {
  UnitState& state = units_[unit.value];
  const auto uses = std::span(last_uses.events).first(last_uses.count);
  state.last_uses.insert(state.last_uses.end(), uses.begin(), uses.end());
  if (--state.holders > 0) co_return;
  --live_units_;
  // A last use was recorded on a stream that had waited for the collective, so it covers that too.
  std::vector<Event> events = std::exchange(state.last_uses, event_lists_.take());
  co_await free_slot(std::move(events), std::move(state.slot), std::exchange(state.buffer, {}));
}

Task<> Engine::free_slot(std::vector<Event> last_uses, SlabSet slot, std::span<std::byte> buffer) {
  const SlabSet held = std::move(slot);
  for (const Event event : last_uses) co_await executor_.fired(event);
  device_.note_release(buffer);
  event_lists_.give_back(std::move(last_uses));
}

}  // namespace strata
