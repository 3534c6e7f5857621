// What the machine does, measured through the engine's own paths while nothing else runs: requests
// of whole tiles in its files, copies between its slabs and its slots, updates of its tiles on its
// workers. States hold garbage afterwards.
#include <algorithm>
#include <vector>

#include "engine/engine.hpp"
#include "strata/bytes.hpp"

namespace strata {
namespace {

// Enough to be past queues and caches, and little enough to be over soon.
constexpr Bytes kDiskBytes = 192_MiB;  // or twice what rests there
constexpr Bytes kCopyBytes = 64_MiB;
constexpr std::int64_t kWorkNs = 30'000'000;
constexpr std::size_t kRequestsInFlight = 6;
constexpr double kSecond = 1e9;

double rate(double amount, std::int64_t ns) {
  return ns <= 0 ? 0 : amount / (static_cast<double>(ns) / kSecond);
}

}  // namespace

// Requests on tiles of the first part of the files, over and over.
struct Engine::DiskProbe {
  std::uint32_t extents = 0;
  Bytes left;
  std::uint32_t next = 0;
  Bytes moved = {};
};

// One lane of requests, each of which starts when the one before it is done.
Task<> Engine::probe_lane(DiskProbe& probe, IoOp op, std::byte* data) {
  while (probe.left > Bytes{}) {
    const ExtentId extent{probe.next++ % probe.extents};
    const Bytes size = co_await tile_io_.probe(extent, op, data);
    probe.left = probe.left > size ? probe.left - size : Bytes{};
    probe.moved += size;
  }
}

Task<double> Engine::probe_disk_task(Bytes read, Bytes written) {
  SlabPool& pool = update_slabs_.free() > gather_slabs_.free() ? update_slabs_ : gather_slabs_;
  std::vector<SlabSet> slabs;
  while (slabs.size() < kRequestsInFlight && pool.free() > 0) {
    slabs.push_back(co_await pool.acquire(1));
  }
  const std::uint32_t extents =
      std::min<std::uint32_t>(map_.extents(), kDiskBytes.value / g_.staging.slab.value + 1);
  if (slabs.empty() || extents == 0) co_return 0;
  DiskProbe reads{.extents = extents, .left = read};
  DiskProbe writes{.extents = extents, .left = written, .next = extents / 2};
  const std::int64_t begin_ns = executor_.now_ns();
  TaskGroup lanes;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const bool writing = read == Bytes{} || (written > Bytes{} && i % 2 == 1);
    lanes.start(probe_lane(writing ? writes : reads, writing ? IoOp::write : IoOp::read,
                           slabs[i][0].data()));
  }
  co_await lanes.join();
  co_return rate(static_cast<double>((reads.moved + writes.moved).value),
                 executor_.now_ns() - begin_ns);
}

Task<double> Engine::probe_copy_task(CopyKind kind) {
  const SlabSet slab = co_await checkpoint_slabs_.acquire(1);
  const SlabSet slot = co_await gather_slots_.acquire(1);
  const std::size_t size = std::min(slab[0].size(), slot[0].size());
  device_.note_lease(slot[0]);
  const bool in = kind == CopyKind::host_to_device;
  const StreamId stream = in ? copy_in_stream_ : copy_out_stream_;
  std::byte* const device = slot[0].data();
  std::byte* const host = slab[0].data();
  if (!in) device_.zero(stream, device, Bytes{size});
  const std::uint64_t copies = std::max<std::uint64_t>(kCopyBytes.value / size, 1);
  double best = 0;
  for (int round = 0; round < 2; ++round) {
    const std::int64_t begin_ns = executor_.now_ns();
    for (std::uint64_t i = 0; i < copies; ++i) {
      device_.copy(stream, in ? device : host, in ? host : device, Bytes{size}, kind);
    }
    co_await executor_.event(device_.record(stream));
    best = std::max(best, rate(static_cast<double>(copies * size), executor_.now_ns() - begin_ns));
  }
  device_.note_release(slot[0]);
  co_return best;
}

// Bytes that a rank receives per second of its collectives' stream.
Task<double> Engine::probe_gather_task() {
  const SlabSet slot = co_await gather_slots_.acquire(1);
  device_.note_lease(slot[0]);
  std::vector<ShardedBuffer> buffers;
  UnitId largest{0};
  for (std::uint32_t u = 0; u < units_.size(); ++u) {
    if (gathered_bytes(g_.layout, g_.table, UnitId{u}) >
        gathered_bytes(g_.layout, g_.table, largest)) {
      largest = UnitId{u};
    }
  }
  place_buffers(largest, slot[0].data(), g_.table[kParamKind].dtype, false, buffers);
  double received = 0;
  std::int64_t begin_ns = executor_.now_ns();
  constexpr int kRounds = 6;
  for (int round = 0; round < kRounds; ++round) {
    if (round == 1) {  // the first warms up
      co_await executor_.event(device_.record(collective_stream_));
      begin_ns = executor_.now_ns();
      received = 0;
    }
    communicator_.all_gather(collective_stream_, buffers);
    for (const ShardedBuffer& buffer : buffers) {
      const Bytes shard = buffer.shard_elems * size_of(buffer.dtype);
      received += static_cast<double>((g_.layout.group_size - 1) * shard.value);
    }
  }
  co_await executor_.event(device_.record(collective_stream_));
  const std::int64_t took_ns = executor_.now_ns() - begin_ns;
  device_.note_release(slot[0]);
  check_links();
  co_return rate(received, took_ns);
}

// Updates the tile again and again on a worker, for a while, and then checks its bytes for a while.
Task<> Engine::probe_tile(std::uint32_t segment, std::uint32_t tile_index, const TileRuns& runs,
                          WorkProbe& probe) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileState& state = map_.tile(segment, tile_index);
  const SlabSet slabs = co_await update_slabs_.acquire(update_slabs(tile, g_.table));
  std::array<std::byte*, kMaxKinds> at{};
  std::size_t next_slab = 0;
  for (std::uint32_t k = 0; k < g_.table.size(); ++k) {
    at[k] = tile.homes[k] == Tier::host ? state.homes[k].memory : slabs[next_slab++].data();
  }
  std::vector<UpdateRun> list;
  runs(segment, tile, list);
  UpdateOp op = update_op(tile, at, std::move(list));
  std::int64_t update_ns = 0;
  std::int64_t check_ns = 0;
  std::int64_t sum_ns = 0;
  std::uint64_t updates = 0;
  std::uint64_t checks = 0;
  std::uint64_t sums = 0;
  std::uint64_t sink = 0;
  const Bytes checked = tile_bytes(tile, g_.table[g_.table.master].dtype);
  co_await executor_.work({}, [&] {
    const auto repeat = [&](std::int64_t& ns, std::uint64_t& count, const auto& pass) {
      pass();
      const std::int64_t begin_ns = executor_.now_ns();
      while ((ns = executor_.now_ns() - begin_ns) < kWorkNs) {
        pass();
        ++count;
      }
    };
    repeat(update_ns, updates, [&] { run_on_host(op); });
    repeat(check_ns, checks, [&] {
      sink ^= checksum({at[g_.table.master.value], checked.value}, sink);
    });
    repeat(sum_ns, sums, [&] {
      run_on_host(GradientStatsOp{at[kGradKind.value], g_.table[kGradKind].dtype, tile.count_elems,
                                  state.host_sums.blocks, state.host_sums.nonfinite});
    });
  });
  probe.sink ^= sink;
  ++probe.workers;
  const auto elems = static_cast<double>(tile.count_elems);
  probe.updated_elems_per_s += rate(elems * static_cast<double>(updates), update_ns);
  probe.checked_bytes_per_s +=
      rate(static_cast<double>(checks) * static_cast<double>(checked.value), check_ns);
  probe.summed_elems_per_s += rate(elems * static_cast<double>(sums), sum_ns);
}

// On all workers at once, since they share memory.
Task<WorkProbe> Engine::probe_work_task(unsigned workers, const TileRuns& runs) {
  WorkProbe probe;
  TaskGroup tiles;
  unsigned started = 0;
  for (std::uint32_t s = 0; s < g_.placement.tiles.size(); ++s) {
    if (!g_.layout.segments[s].trainable) continue;
    for (std::uint32_t t = 0; t < g_.placement.tiles[s].size() && started < workers; ++t) {
      if (updates_on_device(tile_of(s, t), g_.table) || tile_of(s, t).count_elems == 0) continue;
      tiles.start(probe_tile(s, t, runs, probe));
      ++started;
    }
  }
  co_await tiles.join();
  if (probe.workers > 0) {
    probe.updated_elems_per_s /= probe.workers;
    probe.checked_bytes_per_s /= probe.workers;
    probe.summed_elems_per_s /= probe.workers;
  }
  co_return probe;
}

Task<double> Engine::probe_device_update_task(const TileRuns& runs) {
  for (std::uint32_t s = 0; s < g_.placement.tiles.size(); ++s) {
    if (!g_.layout.segments[s].trainable) continue;
    for (std::uint32_t t = 0; t < g_.placement.tiles[s].size(); ++t) {
      const Tile& tile = tile_of(s, t);
      if (!updates_on_device(tile, g_.table) || tile.count_elems == 0) continue;
      std::int64_t took_ns = 0;
      std::uint64_t updates = 0;
      for (const std::int64_t begin_ns = executor_.now_ns(); took_ns < kWorkNs; ++updates) {
        std::vector<UpdateRun> list = run_lists_.take();
        runs(s, tile, list);
        co_await update_tile_on_device(s, t, std::move(list));
        took_ns = executor_.now_ns() - begin_ns;
      }
      co_return rate(static_cast<double>(updates * tile.count_elems), took_ns);
    }
  }
  co_return 0;
}

MachineProbe Engine::probe(unsigned workers, const TileRuns& runs,
                           const std::function<void()>& meet) {
  MachineProbe found;
  const auto phase = [&](auto task) {
    meet();
    return executor_.run_blocking(std::move(task));
  };
  const Bytes amount = std::min(kDiskBytes, 2 * map_.extents() * g_.staging.slab);
  phase(probe_disk_task({}, amount));  // the first pass over a new file is slower
  found.disk_write_bytes_per_s = phase(probe_disk_task({}, amount));
  found.disk_read_bytes_per_s = phase(probe_disk_task(amount, {}));
  // Both for as long as each would take alone. A rank without files meets the others here too.
  const double apart = found.disk_read_bytes_per_s + found.disk_write_bytes_per_s;
  const double share = apart > 0 ? found.disk_read_bytes_per_s / apart : 0;
  const Bytes read{static_cast<std::uint64_t>(share * static_cast<double>(amount.value))};
  const double mixed = phase(probe_disk_task(read, amount - read));
  if (apart > 0) found.disk_mix = mixed / apart;
  found.host_to_device_bytes_per_s = phase(probe_copy_task(CopyKind::host_to_device));
  found.device_to_host_bytes_per_s = phase(probe_copy_task(CopyKind::device_to_host));
  if (g_.layout.group_size > 1) found.gather_bytes_per_s = phase(probe_gather_task());
  found.work = phase(probe_work_task(workers, runs));
  found.device_update_elems_per_s = phase(probe_device_update_task(runs));
  meet();
  return found;
}

}  // namespace strata
