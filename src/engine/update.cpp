// The update: tiles of gradient, master and moments come to where the optimizer runs, and the new
// master, moments and parameter go back to their homes.
#include "engine/engine.hpp"
#include "strata/error.hpp"

namespace strata {

Task<> Engine::update_task(const std::vector<UnitId>& units, const TileRuns& runs) {
  TaskGroup tiles;
  std::exception_ptr refused;
  for (const UnitId unit : units) {
    for (const std::uint32_t s : g_.layout.segments_of(unit)) {
      if (!g_.layout.segments[s].trainable) continue;
      for (std::uint32_t t = 0; t < g_.placement.tiles[s].size() && !tiles.failed() && !refused;
           ++t) {
        const Tile& tile = tile_of(s, t);
        std::vector<AdamWRun> tile_runs = run_lists_.take();
        runs(s, tile, tile_runs);
        if (tile_runs.empty()) {
          run_lists_.give_back(std::move(tile_runs));
          continue;
        }
        if (updates_on_device(tile, g_.table)) {
          tiles.start(update_tile_on_device(s, t, std::move(tile_runs)));
          continue;
        }
        // A tile starts when it has every slab it needs; the pool bounds the tiles in flight.
        try {
          SlabSet slabs = co_await update_slabs_.acquire(update_slabs(tile, g_.table));
          tiles.start(update_tile(s, t, std::move(tile_runs), std::move(slabs)));
        } catch (...) {
          refused = std::current_exception();
        }
      }
    }
  }
  co_await tiles.join();
  if (refused) std::rethrow_exception(refused);
}

AdamWOp Engine::adamw_op(const Tile& tile, const std::array<std::byte*, kMaxKinds>& at,
                         std::vector<AdamWRun> runs) const {
  const std::size_t kinds = g_.table.size();
  const bool separate_param = g_.table.master != kParamKind;
  return {.gradient = at[kGradKind.value],
          .gradient_dtype = g_.table[kGradKind].dtype,
          .master = reinterpret_cast<float*>(at[g_.table.master.value]),
          .moment1 = reinterpret_cast<float*>(at[kinds - 2]),
          .moment2 = reinterpret_cast<float*>(at[kinds - 1]),
          .param = separate_param ? at[kParamKind.value] : nullptr,
          .param_dtype = g_.table[kParamKind].dtype,
          .count_elems = tile.count_elems,
          .runs = std::move(runs)};
}

Task<> Engine::update_tile_on_device(std::uint32_t segment, std::uint32_t tile_index,
                                     std::vector<AdamWRun> runs) {
  const TileState& state = map_.tile(segment, tile_index);
  std::array<std::byte*, kMaxKinds> at{};
  for (std::size_t k = 0; k < g_.table.size(); ++k) at[k] = state.homes[k].memory;
  device_.element_op(update_stream_, adamw_op(tile_of(segment, tile_index), at, std::move(runs)));
  co_await executor_.event(device_.record(update_stream_));
}

namespace {

// Rounds the master into `param` where no run wrote it: padding and absent tensors. A parameter
// always equals its rounded master, so this restores what the slab did not hold.
void fill_gaps(const AdamWOp& op) {
  if (op.param == nullptr) return;
  auto* param = static_cast<std::byte*>(op.param);
  const auto fill = [&](std::uint64_t begin, std::uint64_t end) {
    convert(param + begin * size_of(op.param_dtype).value, op.param_dtype, op.master + begin,
            DType::fp32, end - begin);
  };
  std::uint64_t at = 0;
  for (const AdamWRun& run : op.runs) {
    fill(at, run.begin_elems);
    at = run.begin_elems + run.count_elems;
  }
  fill(at, op.count_elems);
}

}  // namespace

Task<> Engine::update_tile(std::uint32_t segment, std::uint32_t tile_index,
                           std::vector<AdamWRun> runs, SlabSet held) {
  const SlabSet slabs = std::move(held);
  const Tile& tile = tile_of(segment, tile_index);
  const TileState& state = map_.tile(segment, tile_index);
  const bool separate_param = g_.table.master != kParamKind;

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
    const bool only_written = KindId{k} == kParamKind && separate_param;
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

  AdamWOp op = adamw_op(tile, at, std::move(runs));
  co_await tile_io_.process(std::span<const TileBuffer>(inputs).first(input_count),
                            std::span(outputs).first(output_count), [&] {
                              run_on_host(op);
                              fill_gaps(op);
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
