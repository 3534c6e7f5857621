// The engine: one executor on one thread that moves shards between their homes and the device and
// runs the collectives and the updates. What the program calls and what a schedule brings forward
// take the same path; look-ahead 0 is a schedule that brings nothing forward.
//
// The methods below are the engine's side of the public calls; the session checks the program,
// agrees with the other ranks and counts reductions before it calls them. An Error that a method
// throws has left the engine consistent: everything in flight completes and close() works.
//
// Collectives run in the order of the calls that enter them: gathers as the schedule or the program
// says, reductions and issue() as called. Updates trail: start_update() returns at once, and
// whatever reads or replaces what a unit's update writes or reads waits for that unit only.
// Thread: the caller's, one at a time. Inside, all coroutines run on the engine thread.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/executor.hpp"
#include "engine/gate.hpp"
#include "engine/slab_pool.hpp"
#include "engine/state_map.hpp"
#include "engine/tile_io.hpp"
#include "engine/vector_pool.hpp"
#include "engine/worker_pool.hpp"
#include "plan/pattern_book.hpp"
#include "strata/communicator.hpp"

namespace strata {

// This rank's part of the verdict.
struct LocalVerdict {
  bool nonfinite = false;
  double sum_of_squares = 0;  // of the unscaled gradients in this rank's shards
};

// The update of a tile: fills in which scalars apply to which of its elements. Nothing: leave the
// tile alone.
using TileRuns =
    std::function<void(std::uint32_t segment, const Tile& tile, std::vector<UpdateRun>& runs)>;

// Which of a unit's declared reductions in this step a reduction is.
struct Contribution {
  bool first = false;
  bool last = false;
  // Of a last one whose unit is to be updated at once, without a verdict. Stays until
  // finish_update(), or until close().
  const TileRuns* update = nullptr;
};

// One gather, for as long as it is held.
struct GatheringId {
  std::uint32_t value = 0;
};

// The last use of a gathered unit on each stream that used it.
struct LastUses {
  static constexpr std::size_t kMostStreams = 8;
  std::array<Event, kMostStreams> events;
  std::size_t count = 0;
};

struct EngineReservations {
  Reservation& gathers;
  Reservation& gradient_buffer;
  Reservation& staging_gather;
  Reservation& staging_gradient;
  Reservation& staging_update;
  Reservation& staging_checkpoint;
  Reservation& activation_slots;
  Reservation& staging_activation;
};

struct EngineOptions {
  unsigned workers = 1;
  CpuSet worker_cpus;  // empty: where the caller may run
  bool verify = true;  // checksums of the nvme tier
  std::int64_t io_retry_ns = 0;
  std::int64_t io_timeout_ns = 0;
  LogSink log;                           // may be empty
  Simulation* simulation = nullptr;      // null: threads of this process
  const TimelineMarks* marks = nullptr;  // must be given
};

struct EngineCounters {
  std::uint64_t host_to_device = 0;
  std::uint64_t device_to_host = 0;
  std::uint64_t gathered = 0;
  std::uint64_t reduced = 0;
};

// Rates of this machine beside the other ranks; 0: the session does not use it.
struct WorkProbe {
  unsigned workers = 0;  // that worked at once; what follows is of one of them
  double updated_elems_per_s = 0;
  double checked_bytes_per_s = 0;
  double summed_elems_per_s = 0;
  std::uint64_t sink = 0;  // keeps a compiler from leaving out what nobody uses
};

struct MachineProbe {
  double disk_read_bytes_per_s = 0;
  double disk_write_bytes_per_s = 0;
  double disk_mix = 0;  // bytes per second of both at once, over the sum of the two
  double host_to_device_bytes_per_s = 0;
  double device_to_host_bytes_per_s = 0;
  double gather_bytes_per_s = 0;  // received
  WorkProbe work;
  double device_update_elems_per_s = 0;
};

// Seconds for which each resource has worked since the engine started.
struct EngineSeconds {
  double host_to_device = 0;
  double device_to_host = 0;
  double collectives = 0;
  double device_updates = 0;
  double workers = 0;  // summed over them
};

class Engine {
 public:
  Engine(const StateGeometry& geometry, const StateMap& map, Device& device, BlockIo& io,
         ExtentStore& store, Communicator& communicator, const EngineReservations& reservations,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // For its coroutines.
  FramePool& frames() { return executor_.frames(); }

  // Stages and enters gathers that the program has not called yet. What finds no slot is staged
  // when it is entered; Pre: what is entered and not called finds a slot beside max_live_units.
  // Does not block; an error of theirs is thrown by gather() and by finish_gradients(). What it
  // points to stays until then.
  void look_ahead(LookAhead gathers);
  // Drops what was brought forward and not called, but for `kept`. What was entered is still
  // gathered first, as on every rank. Does not block.
  void drop_look_ahead(std::optional<UnitId> kept = {});

  struct Gathered {
    GatheringId id;
    Event ready;
    std::span<std::byte> buffer;
  };
  // The unit's parameters stand in the buffer after the event. `shares`: what is held already is
  // held once more; Pre: it is. `next` as look_ahead(), behind this one. Throws
  // Error(budget_exceeded) when max_live_units are held by live leases. Blocks.
  Gathered gather(UnitId unit, bool shares, LookAhead next);
  // One holder less; the bytes return once `last_uses` have fired. Does not block. Any thread.
  void release_gather(GatheringId id, const LastUses& last_uses);

  // `lent` is for the program; where its type is not that of the wire, the program's gradients are
  // converted into `wire` before reduce().
  struct GradientBuffers {
    std::span<std::byte> wire;
    std::span<std::byte> lent;
  };
  // The gradient buffer, its bytes unspecified. Throws Error(budget_exceeded) while it is lent.
  // Blocks until the buffer is free.
  GradientBuffers acquire_gradients(UnitId unit);
  // Ends the loan: reduces the buffer after `written`. Does not block on data.
  void reduce(UnitId unit, Event written, Contribution contribution);
  // Ends the loan without reducing.
  void drop_gradients(Event last_use);

  // The event after which the collectives that `enqueue` enqueues have run; they run after
  // `before`. Throws what `enqueue` throws. Blocks until they are enqueued.
  Event issue(Event before, const std::function<void(Communicator&, StreamId)>& enqueue);

  // Drops what was brought forward, waits until every reduction has been added and sums the
  // gradients of `reduced` units; `incomplete` are those among them whose last declared reduction
  // did not come. Blocks.
  LocalVerdict finish_gradients(const std::vector<UnitId>& reduced,
                                const std::vector<UnitId>& incomplete);

  // Updates the trainable tiles of `units`, in this order. Does not block: both arguments stay
  // until finish_update(), or until close(). Pre: finish_gradients() came before, and no update of
  // these units is under way.
  void start_update(const std::vector<UnitId>& units, const TileRuns& runs);
  // Blocks until all updates that were started are published and written. Throws their first
  // error.
  void finish_update();
  // The same for the update of one unit.
  void finish_update(UnitId unit);
  // From the start of an update until everything is published and written; for good after an
  // error. Both from any thread.
  bool updating() const { return units_to_update_ > 0; }
  bool update_failed() const { return update_failed_; }
  // Drops what was brought forward and waits for it and for the update, as what reads or sets
  // states needs. Throws the update's error. Blocks.
  void settle();

  // A device buffer whose contents may be used once `ready` (if recorded) has fired.
  struct LentActivation {
    std::span<std::byte> memory;
    Event ready;
  };
  // Lends a buffer for activation `index`, its contents unspecified. This and unstash() throw
  // Error(invalid_argument) while the activation is lent. Blocks until a buffer is free.
  LentActivation lend_activation(std::uint32_t index);
  // Ends that: what the buffer holds after `last_use` goes to its home. Does not block.
  void keep_activation(std::uint32_t index, Event last_use);
  // Brings back what was kept. Throws Error(invalid_argument) when nothing was, and the error of
  // its way to its home or back. Blocks as gather() does.
  LentActivation unstash(std::uint32_t index);
  // Ends either without keeping what the buffer holds. `wanted_again`: what came from the home, and
  // is still there, may be brought back once more. Does not block.
  void end_activation(std::uint32_t index, Event last_use, bool wanted_again);
  // What was kept is not wanted any more. Does not block.
  void forget_activations();

  // Checkpoint slabs for the caller to fill or read: fp32 values, and one for the conversion.
  SlabSet borrow_checkpoint_slabs(std::size_t count);
  void return_checkpoint_slabs(SlabSet slabs);
  // Moves a tile of one kind, in its dtype, between `data` (a slab) and its home. Blocks.
  void store_tile(std::uint32_t segment, std::uint32_t tile, KindId kind, std::byte* data);
  void load_tile(std::uint32_t segment, std::uint32_t tile, KindId kind, std::byte* data);

  EngineCounters counters() const;
  EngineSeconds busy_seconds() const;

  // Measures the machine through the engine's own paths: some seconds. States hold garbage
  // afterwards. `runs` as for an update; `meet` lets the ranks begin each measurement together.
  // Pre: nothing is under way. Blocks.
  MachineProbe probe(unsigned workers, const TileRuns& runs, const std::function<void()>& meet);

  // Waits for everything in flight. Swallows errors, which were told before. Blocks.
  void drain();

 private:
  // One gather of a unit, from its staging until its bytes return.
  struct Gathering {
    GatheringId id;
    UnitId unit;
    SlabSet slot;
    std::span<std::byte> buffer;
    std::vector<ShardedBuffer> buffers;
    Turns::Turn turn;     // from when it is entered until its collective is enqueued
    Gate entered{false};  // or dropped before
    Gate arrived{false};  // its collective is enqueued, or it failed
    bool dropped = false;
    std::exception_ptr error;
    Event ready;
    std::uint32_t holders = 0;
    std::vector<Event> last_uses;
  };

  // A tile that sets out for its update.
  struct TileToUpdate {
    UnitId unit;
    const TileRuns* runs = nullptr;
    std::uint32_t segment = 0;  // counted from the unit's first
    std::uint32_t tile = 0;
  };

  struct UnitState {
    explicit UnitState(Executor& executor) : additions(executor) {}

    Gathering* held = nullptr;   // the latest that the program holds
    Gathering* ahead = nullptr;  // brought forward, and not called yet
    std::size_t fetches = 0;     // under way, dropped ones included
    Gate fetched{true};          // open while there are none
    Gate updated{true};
    std::size_t tiles_to_update = 0;
    Turns additions;  // reductions of one unit add up in the order of the calls
  };

  // On the device while it is lent, fetched or on its way home; what rests on the device always.
  struct Activation {
    SlabSet slot;
    Gate home_is_settled{true};  // no copy on its way to it
    Gate fetched{true};          // no copy on its way from it
    bool lent = false;           // to the program
    bool dropped = false;        // fetched for nobody
    Event ready;                 // of the last fetch; on the device: the last use
    std::exception_ptr error;
  };

  // activations.cpp
  void require_not_lent(std::uint32_t index) const;
  Task<LentActivation> lend_activation_task(std::uint32_t index);
  Task<std::span<std::byte>> take_activation_buffer(std::uint32_t index);
  std::span<std::byte> activation_buffer(const SlabSet& slot) const;
  Task<> release_activation_buffer(std::uint32_t index, Event last_use);
  Task<> keep_activation_task(std::uint32_t index, Event last_use);
  Task<> store_activation_piece(std::uint32_t index, std::size_t piece, const std::byte* from);
  std::string activation_label(std::uint32_t index) const;
  void fetch_activation(std::uint32_t index);
  Task<> fetch_activation_task(std::uint32_t index);
  Task<> load_activation_piece(std::uint32_t index, std::size_t piece, std::byte* to);
  Task<LentActivation> unstash_task(std::uint32_t index);
  void fetch_activations_ahead();
  void drop_fetched_activations();
  bool fetch_ahead(std::uint32_t index);
  void drop_fetched_activation(std::uint32_t index);
  Task<> end_activation_task(std::uint32_t index, Event last_use, bool wanted_again);
  Task<> forget_activations_task();

  // gather.cpp
  Task<> look_ahead_task(LookAhead gathers);
  Task<> drop_task(std::optional<UnitId> kept);
  void drop_all_but(std::optional<UnitId> kept);
  Task<Gathered> gather_task(UnitId unit, bool shares, LookAhead next);
  void bring_forward(LookAhead gathers);
  Gathering& stage(UnitId unit);
  void stage_ahead(UnitId unit);
  void enter(Gathering& gathering);
  void drop(Gathering& gathering);
  Task<> fetch_task(Gathering& gathering);
  Task<> bring(Gathering& gathering);
  Task<> fetch_tile(std::uint32_t segment, std::uint32_t tile, std::byte* destination);
  Task<> release_task(GatheringId id, LastUses last_uses);
  // Ends a gathering once its last uses have fired.
  Task<> retire_task(Gathering& gathering);
  void require_gather_slot(UnitId unit) const;
  // Where the unit's segments stand in a buffer that begins at `base`.
  void place_buffers(UnitId unit, std::byte* base, DType dtype, bool trainable_only,
                     std::vector<ShardedBuffer>& buffers) const;

  // gradients.cpp
  Task<GradientBuffers> acquire_gradients_task(UnitId unit);
  Task<> reduce_task(UnitId unit, Event written, Contribution contribution);
  Task<> add_reduced(UnitId unit, std::span<const ShardedBuffer> buffers,
                     Contribution contribution);
  Task<> drop_gradients_task(Event last_use);
  void wait_for_reduced(UnitId unit, Event reduced);
  Task<> add_gradient(std::uint32_t segment, std::uint32_t tile, const std::byte* wire,
                      Contribution contribution);
  Task<> add_on_device(UnitId unit, const Tile& tile, const TileState& state, const std::byte* wire,
                       Contribution contribution);
  Task<> add_on_host(UnitId unit, const Tile& tile, const TileState& state, const std::byte* wire,
                     Contribution contribution);
  Task<> add_on_nvme(std::uint32_t segment, std::uint32_t tile, const std::byte* wire,
                     Contribution contribution);
  // `op` computes the sums, among other things.
  void enqueue_device_sums(const Tile& tile, const TileState& state, const ElementOp& op);
  Task<> sum_gradient(std::uint32_t segment, std::uint32_t tile);
  Task<LocalVerdict> finish_task(const std::vector<UnitId>& reduced,
                                 const std::vector<UnitId>& incomplete);
  LocalVerdict local_verdict(const std::vector<UnitId>& reduced) const;

  // update.cpp
  Task<> update_task(const std::vector<UnitId>& units, const TileRuns& runs);
  Task<> update_early(UnitId unit, const TileRuns& runs);
  void begin_update(UnitId unit, const TileRuns& runs);
  // Starts pending tiles, those of the latest unit first: the next forward needs it first.
  Task<> update_pending();
  std::optional<TileToUpdate> take_next_tile();
  Task<> start_tile(TileToUpdate next);
  Task<> finish_tile(UnitId unit, Task<> update);
  void fail_update(std::exception_ptr error);
  Task<> finish_update_task();
  Task<> settle_task();
  // Passes once the unit's update has been published and written. Throws the update's error.
  Task<> updated(UnitId unit);
  void tile_is_updated(UnitId unit);
  Task<> update_tile(std::uint32_t segment, std::uint32_t tile, std::vector<UpdateRun> runs,
                     SlabSet slabs);
  Task<> update_tile_on_device(std::uint32_t segment, std::uint32_t tile,
                               std::vector<UpdateRun> runs);
  UpdateOp update_op(const Tile& tile, const std::array<std::byte*, kMaxKinds>& at,
                     std::vector<UpdateRun> runs) const;

  // probe.cpp
  struct DiskProbe;
  Task<> probe_lane(DiskProbe& probe, IoOp op, std::byte* data);
  Task<double> probe_disk_task(Bytes read, Bytes written);
  Task<double> probe_copy_task(CopyKind kind);
  Task<double> probe_gather_task();
  Task<> probe_tile(std::uint32_t segment, std::uint32_t tile, const TileRuns& runs,
                    WorkProbe& probe);
  Task<WorkProbe> probe_work_task(unsigned workers, const TileRuns& runs);
  Task<double> probe_device_update_task(const TileRuns& runs);

  // transfer.cpp
  Task<> await_gathers();
  Task<Event> issue_task(Event before, const std::function<void(Communicator&, StreamId)>& enqueue);
  Task<> store_task(std::uint32_t segment, std::uint32_t tile, KindId kind, std::byte* data);
  Task<> load_task(std::uint32_t segment, std::uint32_t tile, KindId kind, std::byte* data);
  Task<SlabSet> borrow_task(std::size_t count);
  Task<> return_task(SlabSet slabs);
  Task<> hold_until(Event event, SlabSet slabs);
  Task<> drain_task();
  // On the streams of copies. `entry`: of the timeline.
  void copy_in(std::string entry, std::byte* device, const std::byte* host, Bytes size);
  void copy_out(std::string entry, std::byte* host, const std::byte* device, Bytes size);
  // Throws the device's or the communicator's failure, if any.
  void check_links() const;

  const Tile& tile_of(std::uint32_t segment, std::uint32_t tile) const {
    return g_.placement.tiles[segment][tile];
  }
  Bytes tile_bytes(const Tile& tile, DType dtype) const {
    return tile.count_elems * size_of(dtype);
  }
  TileBuffer on_nvme(std::uint32_t segment, std::uint32_t tile, KindId kind,
                     std::byte* data) const {
    return {.extent = map_.tile(segment, tile).homes[kind.value].extent, .data = data};
  }
  TileName name_of(ExtentId extent) const;
  std::string label(std::string_view what, UnitId unit) const {
    return marks_.label(what, g_.layout.units[unit.value].name);
  }
  bool accumulates() const { return g_.table.accumulates; }

  const StateGeometry& g_;
  const StateMap& map_;
  Device& device_;
  Communicator& communicator_;
  const LogSink log_;
  const TimelineMarks& marks_;

  std::optional<WorkerPool> own_workers_;
  Workers& workers_;
  Executor executor_;
  TileIo tile_io_;
  StreamId copy_in_stream_;   // host -> device, and parameters at rest -> gather slots
  StreamId copy_out_stream_;  // device -> host
  StreamId collective_stream_;
  StreamId update_stream_;  // gradients and updates that stay on the device

  SlabPool gather_slots_;
  SlabPool gradient_slots_;
  SlabPool gather_slabs_;
  SlabPool gradient_slabs_;
  SlabPool update_slabs_;
  SlabPool checkpoint_slabs_;
  SlabPool activation_slots_;
  SlabPool activation_slabs_;

  // Engine thread only.
  std::deque<UnitState> units_;
  std::uint32_t live_units_ = 0;
  std::deque<Gathering> gatherings_;
  std::vector<Gathering*> idle_gatherings_;
  std::vector<Gathering*> ahead_;  // brought forward, and not called yet
  Turns collectives_;
  std::deque<Activation> activations_;
  std::vector<std::uint32_t> stashed_;            // in the order of their stashing
  std::vector<std::uint32_t> activations_ahead_;  // fetched, and not asked for yet
  std::vector<std::uint32_t> unstashed_;          // in this step
  std::vector<std::uint32_t> unstashed_before_;   // in the last step that unstashed any
  SlabSet lent_gradient_;
  std::span<std::byte> gradient_buffer_;
  TaskGroup fetches_;     // their errors surface in gather() and finish_gradients()
  TaskGroup reductions_;  // their errors surface in finish_gradients()
  TaskGroup updates_;     // their errors surface in finish_update() and updated()
  std::vector<TileToUpdate> pending_updates_;  // the next tile of each unit; the next unit last
  bool starting_updates_ = false;
  TaskGroup background_;  // releases and look-ahead; they fail for want of memory only
  std::exception_ptr update_error_;
  std::atomic<std::uint64_t> units_to_update_ = 0;
  std::atomic<bool> update_failed_ = false;
  VectorPool<UpdateRun> run_lists_;
  VectorPool<ShardedBuffer> buffer_lists_;

  std::atomic<std::uint64_t> copied_in_ = 0;
  std::atomic<std::uint64_t> copied_out_ = 0;
  std::atomic<std::uint64_t> gathered_ = 0;
  std::atomic<std::uint64_t> reduced_ = 0;

  std::optional<EngineThread> thread_;  // last: starts when everything else stands
};

}  // namespace strata
