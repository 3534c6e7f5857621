// Gathers: shard tiles from their homes into the unit's buffer on the device, then one all-gather.
#include <fmt/format.h>

#include "engine/engine.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata {

Task<> Engine::look_ahead_task(LookAhead gathers) {
  bring_forward(gathers);
  co_return;
}

void Engine::bring_forward(LookAhead gathers) {
  for (const UnitId unit : gathers.stage) {
    // A program that holds more than it did when its calls were recorded leaves fewer slots.
    if (live_units_ + ahead_.size() < g_.gather_slots()) stage_ahead(unit);
  }
  for (const UnitId unit : gathers.enter) {
    if (units_[unit.value].ahead == nullptr) stage_ahead(unit);
    enter(*units_[unit.value].ahead);
  }
}

void Engine::stage_ahead(UnitId unit) {
  Gathering& gathering = stage(unit);
  units_[unit.value].ahead = &gathering;
  ahead_.push_back(&gathering);
}

Task<> Engine::drop_task(std::optional<UnitId> kept) {
  drop_all_but(kept);
  co_return;
}

void Engine::drop_all_but(std::optional<UnitId> kept) {
  std::erase_if(ahead_, [&](Gathering* gathering) {
    if (gathering->unit == kept) return false;
    drop(*gathering);
    return true;
  });
}

// What was entered still takes part in its collective.
void Engine::drop(Gathering& gathering) {
  units_[gathering.unit.value].ahead = nullptr;
  gathering.dropped = true;
  gathering.entered.open(executor_);
  // One that has arrived waits for nobody; fetch_task() retires the others.
  if (gathering.arrived.is_open()) background_.start(retire_task(gathering));
}

Task<Engine::Gathered> Engine::gather_task(UnitId unit, bool shares, LookAhead next) {
  UnitState& state = units_[unit.value];
  if (shares) {
    if (state.held == nullptr) {
      throw Error(ErrorCode::invalid_argument,
                  "a lease of the unit ended on another thread while it was gathered",
                  {.unit = g_.layout.units[unit.value].name});
    }
    ++state.held->holders;
    bring_forward(next);
    co_return Gathered{state.held->id, state.held->ready, state.held->buffer};
  }
  require_gather_slot(unit);
  Gathering& gathering = state.ahead != nullptr ? *state.ahead : stage(unit);
  state.ahead = nullptr;
  std::erase(ahead_, &gathering);
  if (!gathering.entered.is_open()) enter(gathering);
  ++live_units_;
  bring_forward(next);
  // It has a slot, whatever was staged ahead of it. What was entered stays, as on every rank.
  while (live_units_ + ahead_.size() > g_.gather_slots() && !ahead_.back()->entered.is_open()) {
    drop(*ahead_.back());
    ahead_.pop_back();
  }
  co_await gathering.arrived.passed();
  if (gathering.error) {
    --live_units_;
    const std::exception_ptr error = gathering.error;
    background_.start(retire_task(gathering));
    std::rethrow_exception(error);
  }
  gathering.holders = 1;
  state.held = &gathering;
  co_return Gathered{gathering.id, gathering.ready, gathering.buffer};
}

Engine::Gathering& Engine::stage(UnitId unit) {
  if (idle_gatherings_.empty()) {
    Gathering& gathering = gatherings_.emplace_back();
    gathering.id.value = static_cast<std::uint32_t>(gatherings_.size() - 1);
    idle_gatherings_.push_back(&gathering);
  }
  Gathering& gathering = *idle_gatherings_.back();
  idle_gatherings_.pop_back();
  gathering.unit = unit;
  UnitState& state = units_[unit.value];
  ++state.fetches;
  state.fetched.close();
  fetches_.start(fetch_task(gathering));
  return gathering;
}

void Engine::enter(Gathering& gathering) {
  // One that has failed already has no use for a turn.
  if (!gathering.arrived.is_open()) gathering.turn = collectives_.take();
  gathering.entered.open(executor_);
}

Task<> Engine::fetch_task(Gathering& gathering) {
  try {
    co_await bring(gathering);
  } catch (...) {
    gathering.error = std::current_exception();
    collectives_.fail(gathering.error);
  }
  gathering.turn.end();
  gathering.arrived.open(executor_);
  UnitState& state = units_[gathering.unit.value];
  if (--state.fetches == 0) state.fetched.open(executor_);
  if (gathering.dropped) background_.start(retire_task(gathering));
}

// Everything between the staging of a gather and its collective.
Task<> Engine::bring(Gathering& gathering) {
  const UnitId unit = gathering.unit;
  gathering.slot = co_await gather_slots_.acquire(1);
  if (gathering.dropped && !gathering.turn.taken()) co_return;
  gathering.buffer = gathering.slot[0].first(gathered_bytes(g_.layout, g_.table, unit).value);
  device_.note_lease(gathering.buffer);
  co_await updated(unit);

  const DType dtype = g_.table[kParamKind].dtype;
  std::vector<ShardedBuffer>& buffers = gathering.buffers;
  place_buffers(unit, gathering.buffer.data(), g_.table[kParamKind].dtype, false, buffers);
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
  const std::exception_ptr error = co_await tiles.settle();
  const Event copied = device_.record(copy_in_stream_);
  gathering.last_uses.push_back(copied);  // until the collective has taken it over
  if (error) std::rethrow_exception(error);
  co_await gathering.entered.passed();
  if (!gathering.turn.taken()) co_return;  // dropped
  co_await gathering.turn.reached();
  device_.wait(collective_stream_, copied);
  const TimelineMarks::Mark mark = marks_.begin(collective_stream_);
  communicator_.all_gather(collective_stream_, buffers);
  marks_.end(mark, collective_stream_, TimelineRow::collectives, label("gather", unit));
  gathered_ += (g_.layout.group_size - 1) * gathering.buffer.size() / g_.layout.group_size;
  gathering.ready = device_.record(collective_stream_);
  gathering.last_uses.back() = gathering.ready;
  check_links();
}

void Engine::require_gather_slot(UnitId unit) const {
  if (live_units_ < g_.max_live_units) return;
  std::string live;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Gathering* gathering = units_[u].held;
    if (gathering == nullptr) continue;
    live += fmt::format("{}{} ({})", live.empty() ? "" : ", ", g_.layout.units[u].name,
                        format_bytes(Bytes{gathering->buffer.size()}));
  }
  throw Error(
      ErrorCode::budget_exceeded,
      fmt::format("gather needs a {} slot on the device but all {} are held by live leases: "
                  "{}; end one first or raise engine.max_live_units",
                  format_bytes(g_.gather_slot), g_.max_live_units, live),
      {.unit = g_.layout.units[unit.value].name});
}

void Engine::place_buffers(UnitId unit, std::byte* base, DType dtype, bool trainable_only,
                           std::vector<ShardedBuffer>& buffers) const {
  buffers.clear();
  for (const std::uint32_t s : g_.layout.segments_of(unit)) {
    const Segment& segment = g_.layout.segments[s];
    if (trainable_only && !segment.trainable) continue;
    buffers.push_back({base, segment.shard_elems, dtype});
    const Bytes size = segment.shard_elems * g_.layout.group_size * size_of(dtype);
    base += round_up(size, kPieceAlign).value;
  }
}

Task<> Engine::fetch_tile(std::uint32_t segment, std::uint32_t tile_index, std::byte* destination) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileHome& home = map_.tile(segment, tile_index).homes[kParamKind.value];
  const Bytes size = tile_bytes(tile, g_.table[kParamKind].dtype);
  const UnitId unit = g_.layout.segments[segment].unit;
  switch (tile.home(kParamKind)) {
    case Tier::device:
      device_.copy(copy_in_stream_, destination, home.memory, size, CopyKind::device_to_device);
      break;
    case Tier::host: copy_in(label("param", unit), destination, home.memory, size); break;
    case Tier::nvme: {
      SlabSet slab = co_await gather_slabs_.acquire(1);
      co_await tile_io_.read(on_nvme(segment, tile_index, kParamKind, slab[0].data()),
                             IoPriority::gather);
      copy_in(label("param", unit), destination, slab[0].data(), size);
      background_.start(hold_until(device_.record(copy_in_stream_), std::move(slab)));
      break;
    }
  }
}

Task<> Engine::release_task(GatheringId id, LastUses last_uses) {
  Gathering& gathering = gatherings_[id.value];
  const auto uses = std::span(last_uses.events).first(last_uses.count);
  gathering.last_uses.insert(gathering.last_uses.end(), uses.begin(), uses.end());
  if (--gathering.holders > 0) co_return;
  --live_units_;
  UnitState& state = units_[gathering.unit.value];
  if (state.held == &gathering) state.held = nullptr;
  co_await retire_task(gathering);
}

Task<> Engine::retire_task(Gathering& gathering) {
  for (const Event event : gathering.last_uses) co_await executor_.fired(event);
  if (!gathering.buffer.empty()) device_.note_release(gathering.buffer);
  gathering.slot = {};
  gathering.buffer = {};
  gathering.last_uses.clear();
  gathering.error = nullptr;
  gathering.dropped = false;
  gathering.holders = 0;
  gathering.entered.close();
  gathering.arrived.close();
  idle_gatherings_.push_back(&gathering);
}

}  // namespace strata
