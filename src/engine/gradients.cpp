// Gradients: one reduce-scatter per reduction, one crossing of this rank's shard to its home, and
// canonical sums from the pass that completes a gradient.
#include <fmt/format.h>

#include "engine/engine.hpp"
#include "strata/error.hpp"

namespace strata {

Task<Engine::GradientBuffers> Engine::acquire_gradients_task(UnitId unit) {
  if (lent_gradient_.size() > 0) {
    throw Error(ErrorCode::budget_exceeded,
                "the gradient buffer is lent already: reduce() the previous gradients first",
                {.unit = g_.layout.units[unit.value].name});
  }
  lent_gradient_ = co_await gradient_slots_.acquire(1);
  gradient_buffer_ = lent_gradient_[0].first(lent_gradient_bytes(g_.layout, g_.table, unit).value);
  device_.note_lease(gradient_buffer_);
  const std::size_t wire = gradient_bytes(g_.layout, g_.table, unit).value;
  const bool one = gradient_buffer_.size() == wire;
  co_return GradientBuffers{gradient_buffer_.first(wire), gradient_buffer_.subspan(one ? 0 : wire)};
}

Task<> Engine::drop_gradients_task(Event last_use) {
  const SlabSet slot = std::move(lent_gradient_);
  const std::span<std::byte> buffer = gradient_buffer_;
  co_await executor_.fired(last_use);
  device_.note_release(buffer);
}

Task<> Engine::reduce_task(UnitId unit, Event written, Contribution contribution) {
  SlabSet slot = std::move(lent_gradient_);
  const std::span<std::byte> buffer = gradient_buffer_;
  std::vector<ShardedBuffer> buffers = buffer_lists_.take();
  place_buffers(unit, buffer.data(), g_.table.wire, true, buffers);
  Event done = written;  // with the buffer
  std::exception_ptr error;
  Turns::Turn turn = collectives_.take();
  Turns::Turn addition = units_[unit.value].additions.take();
  try {
    co_await turn.reached();
    device_.wait(collective_stream_, written);
    const TimelineMarks::Mark mark = marks_.begin(collective_stream_);
    communicator_.reduce_scatter(collective_stream_, buffers);
    marks_.end(mark, collective_stream_, TimelineRow::collectives, label("reduce", unit));
    reduced_ += (g_.layout.group_size - 1) * gradient_bytes(g_.layout, g_.table, unit).value /
                g_.layout.group_size;
    done = device_.record(collective_stream_);
    wait_for_reduced(unit, done);
    turn.end();
    co_await addition.reached();
    co_await updated(unit);  // it reads the gradient of the step before
    co_await add_reduced(unit, buffers, contribution);
  } catch (...) {
    error = std::current_exception();
    collectives_.fail(error);
  }
  turn.end();
  addition.end();
  if (error) co_await executor_.fired(done);
  device_.note_release(buffer);
  slot = {};
  buffer_lists_.give_back(std::move(buffers));
  if (error) std::rethrow_exception(error);
  check_links();
  if (contribution.update != nullptr) co_await update_early(unit, *contribution.update);
}

Task<> Engine::add_reduced(UnitId unit, std::span<const ShardedBuffer> buffers,
                           Contribution contribution) {
  TaskGroup tiles;
  auto sharded = buffers.begin();
  for (const std::uint32_t s : g_.layout.segments_of(unit)) {
    if (!g_.layout.segments[s].trainable) continue;
    const std::uint64_t elem_bytes = size_of(g_.table.wire).value;
    const std::byte* shard = static_cast<const std::byte*>(sharded->data) +
                             g_.rank.value * sharded->shard_elems * elem_bytes;
    ++sharded;
    for (std::uint32_t t = 0; t < g_.placement.tiles[s].size(); ++t) {
      tiles.start(add_gradient(s, t, shard + tile_of(s, t).begin_elems * elem_bytes, contribution));
    }
  }
  co_await tiles.join();
}

// Each stream that takes a tile's gradient on comes behind the reduction.
void Engine::wait_for_reduced(UnitId unit, Event reduced) {
  bool on_device = false;
  bool elsewhere = false;
  for (const std::uint32_t s : g_.layout.segments_of(unit)) {
    if (!g_.layout.segments[s].trainable) continue;
    for (const Tile& tile : g_.placement.tiles[s]) {
      (tile.home(kGradKind) == Tier::device ? on_device : elsewhere) = true;
    }
  }
  if (on_device) device_.wait(update_stream_, reduced);
  if (elsewhere) device_.wait(copy_out_stream_, reduced);
}

Task<> Engine::add_gradient(std::uint32_t segment, std::uint32_t tile_index, const std::byte* wire,
                            Contribution contribution) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileState& state = map_.tile(segment, tile_index);
  const UnitId unit = g_.layout.segments[segment].unit;
  switch (tile.home(kGradKind)) {
    case Tier::device: co_await add_on_device(unit, tile, state, wire, contribution); break;
    case Tier::host: co_await add_on_host(unit, tile, state, wire, contribution); break;
    case Tier::nvme: co_await add_on_nvme(segment, tile_index, wire, contribution); break;
  }
}

namespace {

// Adds `wire` to the gradient at rest, or replaces it; with its last contribution the sums as well.
AccumulateOp accumulate_op(const Tile& tile, std::byte* rest, const std::byte* wire, DType dtype,
                           Contribution contribution, const TileSums& sums) {
  AccumulateOp op{reinterpret_cast<float*>(rest), wire, dtype, tile.count_elems,
                  contribution.first};
  if (contribution.last) {
    op.block_sums = sums.blocks;
    op.nonfinite = sums.nonfinite;
  }
  return op;
}

GradientStatsOp sums_op(const Tile& tile, const std::byte* gradient, DType dtype,
                        const TileSums& sums) {
  return {gradient, dtype, tile.count_elems, sums.blocks, sums.nonfinite};
}

void sum_on_host(const Tile& tile, const std::byte* gradient, DType dtype, const TileSums& sums) {
  *sums.nonfinite = 0;
  run_on_host(sums_op(tile, gradient, dtype, sums));
}

// What a contribution that has landed on the host is for: addition, sums, or both in one pass.
void take_on_host(const Tile& tile, std::byte* rest, const std::byte* landing,
                  const StateTable& table, Contribution contribution, const TileSums& sums) {
  if (table.accumulates) {
    *sums.nonfinite = 0;
    run_on_host(accumulate_op(tile, rest, landing, table.wire, contribution, sums));
  } else if (contribution.last) {
    sum_on_host(tile, rest, table[kGradKind].dtype, sums);
  }
}

}  // namespace

void Engine::enqueue_device_sums(const Tile& tile, const TileState& state, const ElementOp& op) {
  device_.zero(update_stream_, state.device_sums.nonfinite, Bytes{sizeof(double)});
  device_.element_op(update_stream_, op);
  const Bytes size = gradient_sums_bytes(tile);
  device_.copy(update_stream_, state.host_sums.blocks, state.device_sums.blocks, size,
               CopyKind::device_to_host);
  copied_out_ += size.value;
}

Task<> Engine::add_on_device(UnitId unit, const Tile& tile, const TileState& state,
                             const std::byte* wire, Contribution contribution) {
  std::byte* rest = state.homes[kGradKind.value].memory;
  const TimelineMarks::Mark mark = marks_.begin(update_stream_);
  if (accumulates()) {
    const AccumulateOp op =
        accumulate_op(tile, rest, wire, g_.table.wire, contribution, state.device_sums);
    if (contribution.last) {
      enqueue_device_sums(tile, state, op);
    } else {
      device_.element_op(update_stream_, op);
    }
  } else {
    device_.copy(update_stream_, rest, wire, tile_bytes(tile, g_.table.wire),
                 CopyKind::device_to_device);
    if (contribution.last) {
      enqueue_device_sums(tile, state, sums_op(tile, rest, g_.table.wire, state.device_sums));
    }
  }
  marks_.end(mark, update_stream_, TimelineRow::device_updates, label("add gradient", unit));
  co_await executor_.event(device_.record(update_stream_));
}

Task<> Engine::add_on_host(UnitId unit, const Tile& tile, const TileState& state,
                           const std::byte* wire, Contribution contribution) {
  std::byte* rest = state.homes[kGradKind.value].memory;
  const SlabSet slab = co_await gradient_slabs_.acquire(accumulates() ? 1 : 0);
  std::byte* landing = accumulates() ? slab[0].data() : rest;
  copy_out(label("gradient", unit), landing, wire, tile_bytes(tile, g_.table.wire));
  co_await executor_.event(device_.record(copy_out_stream_));
  if (!accumulates() && !contribution.last) co_return;
  const std::string entry = label("add gradient", unit);
  const JobCost cost{.summed_elems = tile.count_elems, .label = entry};
  co_await executor_.work(
      cost, [&] { take_on_host(tile, rest, landing, g_.table, contribution, state.host_sums); });
}

Task<> Engine::add_on_nvme(std::uint32_t segment, std::uint32_t tile_index, const std::byte* wire,
                           Contribution contribution) {
  const Tile& tile = tile_of(segment, tile_index);
  const UnitId unit = g_.layout.segments[segment].unit;
  const TileState& state = map_.tile(segment, tile_index);
  const SlabSet slabs = co_await gradient_slabs_.acquire(accumulates() ? 2 : 1);
  std::byte* landing = slabs[0].data();
  std::byte* rest = accumulates() ? slabs[1].data() : landing;
  copy_out(label("gradient", unit), landing, wire, tile_bytes(tile, g_.table.wire));
  co_await executor_.event(device_.record(copy_out_stream_));
  TileBuffer at_rest = on_nvme(segment, tile_index, kGradKind, rest);
  const std::span<const TileBuffer> inputs(&at_rest, contribution.first ? 0 : 1);
  if (!contribution.first) co_await tile_io_.fetch(at_rest, IoPriority::stage);
  const std::string entry = label("add gradient", unit);
  const JobCost cost{.summed_elems = tile.count_elems, .label = entry};
  co_await tile_io_.process(inputs, std::span(&at_rest, 1), cost, [&] {
    take_on_host(tile, rest, landing, g_.table, contribution, state.host_sums);
  });
  co_await tile_io_.store(at_rest);
}

// Sums a gradient whose last declared reduction did not come.
Task<> Engine::sum_gradient(std::uint32_t segment, std::uint32_t tile_index) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileState& state = map_.tile(segment, tile_index);
  const TileHome& home = state.homes[kGradKind.value];
  if (tile.home(kGradKind) == Tier::device) {
    enqueue_device_sums(tile, state,
                        sums_op(tile, home.memory, g_.table[kGradKind].dtype, state.device_sums));
    co_await executor_.event(device_.record(update_stream_));
    co_return;
  }
  const bool in_file = tile.home(kGradKind) == Tier::nvme;
  const SlabSet slab = co_await gradient_slabs_.acquire(in_file ? 1 : 0);
  const std::byte* rest = in_file ? slab[0].data() : home.memory;
  if (in_file) {
    co_await tile_io_.read(on_nvme(segment, tile_index, kGradKind, slab[0].data()),
                           IoPriority::stage);
  }
  const std::string entry = label("sum gradient", g_.layout.segments[segment].unit);
  const JobCost cost{.summed_elems = tile.count_elems, .label = entry};
  co_await executor_.work(
      cost, [&] { sum_on_host(tile, rest, g_.table[kGradKind].dtype, state.host_sums); });
}

Task<LocalVerdict> Engine::finish_task(const std::vector<UnitId>& reduced,
                                       const std::vector<UnitId>& incomplete) {
  drop_all_but({});
  co_await fetches_.join();
  co_await reductions_.join();
  if (collectives_.error()) std::rethrow_exception(collectives_.error());
  TaskGroup sums;
  for (const UnitId unit : incomplete) {
    for (const std::uint32_t s : g_.layout.segments_of(unit)) {
      if (!g_.layout.segments[s].trainable) continue;
      for (std::uint32_t t = 0; t < g_.placement.tiles[s].size(); ++t) {
        sums.start(sum_gradient(s, t));
      }
    }
  }
  co_await sums.join();
  co_return local_verdict(reduced);
}

LocalVerdict Engine::local_verdict(const std::vector<UnitId>& reduced) const {
  LocalVerdict verdict;
  for (const UnitId unit : reduced) {
    for (const std::uint32_t s : g_.layout.segments_of(unit)) {
      if (!g_.layout.segments[s].trainable) continue;
      for (std::uint32_t t = 0; t < g_.placement.tiles[s].size(); ++t) {
        const TileSums& sums = map_.tile(s, t).host_sums;
        verdict.nonfinite |= *sums.nonfinite != 0;
        for (std::uint64_t b = 0; b < blocks_of(tile_of(s, t)); ++b) {
          verdict.sum_of_squares += sums.blocks[b];
        }
      }
    }
  }
  return verdict;
}

}  // namespace strata
