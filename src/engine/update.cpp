// The update: tiles of gradient, master and moments come to where the optimizer runs, and the new
// master, moments and parameter go back to their homes.
#include <algorithm>

#include "engine/engine.hpp"
#include "strata/error.hpp"

namespace strata {

Task<> Engine::update_task(const std::vector<UnitId>& units, const TileRuns& runs) {
  // Closes every gate before what comes behind this task looks at them.
  for (std::size_t i = units.size(); i-- > 0;) begin_update(units[i], runs);
  try {
    co_await await_gathers();
  } catch (...) {
    fail_update(std::current_exception());
  }
  co_await update_pending();
}

// Nothing has waited for the unit's gathers: one that was dropped may still read.
Task<> Engine::update_early(UnitId unit, const TileRuns& runs) {
  const UnitState& state = units_[unit.value];
  do {
    co_await units_[unit.value].fetched.passed();
    co_await await_gathers();
  } while (!state.fetched.is_open());
  ++units_to_update_;
  begin_update(unit, runs);
  updates_.start(update_pending());
}

void Engine::begin_update(UnitId unit, const TileRuns& runs) {
  UnitState& state = units_[unit.value];
  state.updated.close();
  state.tiles_to_update = 1;  // until its last tile has set out
  for (const std::uint32_t s : g_.layout.segments_of(unit)) {
    if (g_.layout.segments[s].trainable) state.tiles_to_update += g_.placement.tiles[s].size();
  }
  pending_updates_.push_back({unit, &runs, 0, 0});
}

Task<> Engine::update_pending() {
  if (std::exchange(starting_updates_, true)) co_return;  // whoever is at it takes these too
  try {
    for (auto next = take_next_tile(); next; next = take_next_tile()) co_await start_tile(*next);
  } catch (...) {
    fail_update(std::current_exception());
  }
  starting_updates_ = false;
}

std::optional<Engine::TileToUpdate> Engine::take_next_tile() {
  while (!pending_updates_.empty()) {
    TileToUpdate& next = pending_updates_.back();
    const auto segments = g_.layout.segments_of(next.unit);
    for (; next.segment < segments.size(); ++next.segment, next.tile = 0) {
      const std::uint32_t s = segments[next.segment];
      if (!g_.layout.segments[s].trainable) continue;
      if (next.tile == g_.placement.tiles[s].size()) continue;
      const TileToUpdate taken = next;
      ++next.tile;
      return taken;
    }
    const UnitId unit = next.unit;
    pending_updates_.pop_back();
    tile_is_updated(unit);
  }
  return std::nullopt;
}

// A tile starts when it has every slab it needs; the pool bounds the tiles in flight.
Task<> Engine::start_tile(TileToUpdate next) {
  const std::uint32_t s = g_.layout.segments_of(next.unit)[next.segment];
  const Tile& tile = tile_of(s, next.tile);
  std::vector<UpdateRun> runs = run_lists_.take();
  (*next.runs)(s, tile, runs);
  if (runs.empty()) {
    run_lists_.give_back(std::move(runs));
    tile_is_updated(next.unit);
  } else if (updates_on_device(tile, g_.table)) {
    updates_.start(finish_tile(next.unit, update_tile_on_device(s, next.tile, std::move(runs))));
  } else {
    SlabSet slabs = co_await update_slabs_.acquire(update_slabs(tile, g_.table));
    updates_.start(
        finish_tile(next.unit, update_tile(s, next.tile, std::move(runs), std::move(slabs))));
  }
}

Task<> Engine::finish_tile(UnitId unit, Task<> update) {
  try {
    co_await update;
    tile_is_updated(unit);
  } catch (...) {
    fail_update(std::current_exception());
  }
}

void Engine::tile_is_updated(UnitId unit) {
  UnitState& state = units_[unit.value];
  if (--state.tiles_to_update > 0) return;
  --units_to_update_;
  state.updated.open(executor_);
}

// Nobody waits for what will not come.
void Engine::fail_update(std::exception_ptr error) {
  if (!update_error_) update_error_ = std::move(error);
  update_failed_ = true;
  pending_updates_.clear();
  for (UnitState& state : units_) {
    if (!state.updated.is_open()) state.updated.open(executor_);
  }
}

Task<> Engine::finish_update_task() {
  co_await updates_.join();
  if (update_error_) std::rethrow_exception(update_error_);
}

Task<> Engine::settle_task() {
  drop_all_but({});
  co_await fetches_.join();
  co_await finish_update_task();
}

Task<> Engine::updated(UnitId unit) {
  co_await units_[unit.value].updated.passed();
  if (update_error_) std::rethrow_exception(update_error_);
}

UpdateOp Engine::update_op(const Tile& tile, const std::array<std::byte*, kMaxKinds>& at,
                           std::vector<UpdateRun> runs) const {
  const StateTable& table = g_.table;
  UpdateOp op{.rule = table.rule,
              .gradient = at[kGradKind.value],
              .gradient_dtype = table[kGradKind].dtype,
              .weights = at[table.master.value],
              .weights_dtype = table[table.master].dtype,
              .param = table.has_masters() ? at[kParamKind.value] : nullptr,
              .param_dtype = table[kParamKind].dtype,
              .count_elems = tile.count_elems,
              .runs = std::move(runs)};
  for (std::size_t k = table.first_moment.value; k < table.size(); ++k) {
    op.moments[k - table.first_moment.value] = at[k];
    op.moments_dtype = table.kinds[k].dtype;
  }
  return op;
}

Task<> Engine::update_tile_on_device(std::uint32_t segment, std::uint32_t tile_index,
                                     std::vector<UpdateRun> runs) {
  const TileState& state = map_.tile(segment, tile_index);
  std::array<std::byte*, kMaxKinds> at{};
  for (std::size_t k = 0; k < g_.table.size(); ++k) at[k] = state.homes[k].memory;
  const TimelineMarks::Mark mark = marks_.begin(update_stream_);
  device_.element_op(update_stream_, update_op(tile_of(segment, tile_index), at, std::move(runs)));
  marks_.end(mark, update_stream_, TimelineRow::device_updates,
             label("update", g_.layout.segments[segment].unit));
  co_await executor_.event(device_.record(update_stream_));
}

namespace {

// Rounds the masters into parameters [begin, end) where no run wrote them: padding and absent
// tensors. A parameter always equals its rounded master, so this restores what the slab did not
// hold.
void fill_gaps(const UpdateOp& op, std::uint64_t begin, std::uint64_t end) {
  if (op.param == nullptr) return;
  const auto fill = [&](std::uint64_t first, std::uint64_t last) {
    if (first >= last) return;
    convert(static_cast<std::byte*>(op.param) + first * size_of(op.param_dtype).value,
            op.param_dtype, static_cast<const float*>(op.weights) + first, DType::fp32,
            last - first);
  };
  std::uint64_t at = begin;
  for (const UpdateRun& run : op.runs) {
    fill(at, std::min(run.begin_elems, end));
    at = std::max(at, run.begin_elems + run.count_elems);
  }
  fill(at, end);
}

// Elements that the update and the checksums of what it wrote take in turn: few enough for all
// kinds to stay in the second-level cache in between.
constexpr std::uint64_t kPartElems = 8192;

}  // namespace

Task<> Engine::update_tile(std::uint32_t segment, std::uint32_t tile_index,
                           std::vector<UpdateRun> runs, SlabSet held) {
  const SlabSet slabs = std::move(held);
  const Tile& tile = tile_of(segment, tile_index);
  const TileState& state = map_.tile(segment, tile_index);

  std::array<std::byte*, kMaxKinds> at{};
  std::array<TileBuffer, kMaxKinds> inputs;
  std::array<TileBuffer, kMaxKinds> outputs;
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  TaskGroup reads;
  std::size_t next_slab = 0;
  for (std::uint32_t k = 0; k < g_.table.size(); ++k) {
    if (tile.homes[k] == Tier::host) {
      at[k] = state.homes[k].memory;
      continue;
    }
    at[k] = slabs[next_slab++].data();
    const bool only_written = KindId{k} == kParamKind && g_.table.has_masters();
    if (tile.homes[k] == Tier::nvme) {
      const TileBuffer buffer = on_nvme(segment, tile_index, KindId{k}, at[k]);
      if (KindId{k} != kGradKind) outputs[output_count++] = buffer;
      if (only_written) continue;
      inputs[input_count++] = buffer;
      reads.start(tile_io_.fetch(buffer, IoPriority::stage));
    } else if (!only_written) {
      reads.start(load_task(segment, tile_index, KindId{k}, at[k]));
    }
  }
  co_await reads.join();

  UpdateOp op = update_op(tile, at, std::move(runs));
  const std::string entry = label("update", g_.layout.segments[segment].unit);
  const JobCost cost{.updated_elems = tile.count_elems, .label = entry};
  co_await tile_io_.process(std::span<const TileBuffer>(inputs).first(input_count),
                            std::span(outputs).first(output_count), cost,
                            {.count = tile.count_elems, .part = kPartElems},
                            [&](std::uint64_t begin, std::uint64_t end) {
                              run_on_host(op, begin, end);
                              fill_gaps(op, begin, end);
                            });
  run_lists_.give_back(std::move(op.runs));

  TaskGroup writes;
  for (std::size_t i = 0; i < output_count; ++i) writes.start(tile_io_.store(outputs[i]));
  for (std::uint32_t k = 0; k < g_.table.size(); ++k) {
    if (tile.homes[k] != Tier::device || KindId{k} == kGradKind) continue;
    writes.start(store_task(segment, tile_index, KindId{k}, at[k]));
  }
  co_await writes.join();
}

}  // namespace strata
