// The public face: a session trains one model on the ranks of one communicator, keeping every
// shard where the configuration places it and bringing units to the device when the program asks.
//
//   auto session = strata::Session::open(model, config, std::move(communicator));
//   session.initialize(unit, fill);
//   auto step = session.begin_step({.micro_batches = 2});
//   { auto p = session.gather(unit, stream);  /* enqueue compute on stream */ }
//   { auto g = session.gradients(unit, stream);  /* enqueue */  session.reduce(std::move(g),
//   stream); } strata::StepResult result = step.end();
//
// Every rank makes the same calls in the same order. Ranks that do not get Error(diverged) or
// Error(rank_lost) instead of a hang. After the first error the session refuses work: every later
// call rethrows it, and close() gives everything back.
// A unit that one rank still holds when it gathers it again is held by all of them then; otherwise
// ranks may end leases at different places. Where leases end decides how far gathers run ahead.
// Thread: one caller at a time, except the destructors of leases, but not while the same unit is
// gathered.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/block_io.hpp"
#include "strata/clock.hpp"
#include "strata/communicator.hpp"
#include "strata/config.hpp"
#include "strata/device.hpp"
#include "strata/log.hpp"
#include "strata/memory_plan.hpp"
#include "strata/model.hpp"
#include "strata/timeline.hpp"

namespace strata {

class Simulation;
struct MachineRates;  // strata/machine.hpp

class Session;
class SessionImpl;

// A tensor of a gathered unit, whole, in device memory.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::bf16;
  std::uint64_t count_elems = 0;
};

// A tensor of a gradient buffer; zero until written.
struct GradientView {
  void* data = nullptr;
  DType dtype = DType::bf16;
  std::uint64_t count_elems = 0;
};

// A unit's parameters on the device, from gather() until the lease ends. Ending it does not block:
// the bytes return to the budget when the work enqueued so far on `stream`, and on every stream
// named by also_used_on(), has run.
class [[nodiscard]] GatherLease {
 public:
  GatherLease() = default;
  GatherLease(GatherLease&&) noexcept;
  GatherLease& operator=(GatherLease&&) noexcept;
  ~GatherLease();

  // Valid in stream order until the lease ends.
  TensorView operator[](TensorId tensor) const;
  // Throws Error(invalid_argument) for more than kMostStreams streams, `stream` of gather()
  // included.
  void also_used_on(StreamId stream);
  static constexpr std::size_t kMostStreams = 8;

 private:
  friend class SessionImpl;
  void end() noexcept;

  std::shared_ptr<SessionImpl> session_;
  UnitId unit_;
  std::uint32_t gathering_ = 0;
  std::span<std::byte> buffer_;
  std::array<StreamId, kMostStreams> streams_;
  std::size_t stream_count_ = 0;
  std::shared_ptr<TimelineEntry> entry_;  // of the compute between gather and end
};

// A zeroed gradient buffer for one unit, in the reduce dtype, or in fp32 with
// precision.wide_gradients: rounded once, when it is reduced. Asking for a tensor marks it present
// in this step; tensors that no rank marks keep their weights and states. Hand it to reduce(); a
// lease that ends without it contributes nothing on this rank (and the ranks diverge).
class [[nodiscard]] GradientLease {
 public:
  GradientLease() = default;
  GradientLease(GradientLease&&) noexcept;
  GradientLease& operator=(GradientLease&&) noexcept;
  ~GradientLease();

  GradientView operator[](TensorId tensor);

 private:
  friend class SessionImpl;
  void end() noexcept;

  std::shared_ptr<SessionImpl> session_;
  UnitId unit_;
  StreamId stream_;
  std::span<std::byte> buffer_;
  std::span<std::byte> wire_;
};

// An activation's buffer on the device, valid in stream order until the lease ends, which does not
// block. From stash(): ending it keeps what the work enqueued so far on the stream leaves in it.
// From unstash(): what it holds is gone with the lease.
class [[nodiscard]] ActivationLease {
 public:
  ActivationLease() = default;
  ActivationLease(ActivationLease&&) noexcept;
  ActivationLease& operator=(ActivationLease&&) noexcept;
  ~ActivationLease();

  std::span<std::byte> memory() const { return buffer_; }
  // Ends the lease without keeping anything.
  void discard() noexcept;
  // Of unstash(): ends the lease, and the activation may be brought back once more. Pre: nothing
  // was written to it.
  void keep() noexcept;

 private:
  friend class SessionImpl;
  void end() noexcept;

  std::shared_ptr<SessionImpl> session_;
  enum class AtEnd : std::uint8_t { stash, drop, keep };
  std::uint32_t index_ = 0;
  AtEnd at_end_ = AtEnd::drop;
  StreamId stream_;
  std::span<std::byte> buffer_;
};

// Memory of the trainer's own inside a tier's budget: activations, workspaces, staging. Ending the
// lease does not block and does not wait: Pre: no work that uses it is outstanding.
class [[nodiscard]] ScratchLease {
 public:
  ScratchLease();
  ScratchLease(ScratchLease&&) noexcept;
  ScratchLease& operator=(ScratchLease&&) noexcept;
  ~ScratchLease();

  std::span<std::byte> memory() const;

 private:
  friend class SessionImpl;
  struct State;
  std::unique_ptr<State> state_;
};

// Hyperparameters of one parameter group for one step.
struct GroupRates {
  double learning_rate = 0;
  double weight_decay = 0;  // none unless said here
  // Absent: those of the configuration.
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
};

struct StepOptions {
  // Names the sequence of calls that this step repeats; with each number of micro_batches another.
  // Once a sequence is known, its gathers run ahead of the calls (engine.look_ahead).
  std::string pattern = "train";
  std::uint32_t micro_batches = 1;  // at most Config::engine.max_micro_batches
  double gradient_scale = 1;        // multiplies every gradient: 1 / tokens of all ranks
  // By TensorSpec::group. Empty: one group for all, with the rates of the configuration.
  std::vector<GroupRates> groups = {};
};

// Bytes moved on each link by this rank.
struct LinkBytes {
  Bytes nvme_read;
  Bytes nvme_written;
  Bytes host_to_device;
  Bytes device_to_host;
  Bytes gathered;  // received from peers by all-gathers
  Bytes reduced;   // received from peers by reduce-scatters

  LinkBytes& operator+=(const LinkBytes& other);
};
LinkBytes operator-(const LinkBytes& a, const LinkBytes& b);

// How the nvme tier does its I/O, as far as the machine allowed.
struct StorageFacts {
  std::string backend;      // "io_uring" or "posix"; empty: nothing rests on the nvme tier
  bool direct = false;      // O_DIRECT in every directory; otherwise through the page cache
  bool registered = false;  // staging memory is registered with io_uring; known after a first step
  Bytes page_size;          // of the staging memory
  bool verified = false;    // checksums
};

// How steps met the schedules of their patterns.
struct ScheduleFacts {
  std::uint64_t steps = 0;
  std::uint64_t followed = 0;    // made the recorded calls, whose gathers ran ahead
  std::uint64_t deviations = 0;  // made another call, and nothing ran ahead from there
  std::uint32_t gather_slots = 0;
};

// Where the caller's seconds of a step went.
struct StepSeconds {
  double total = 0;
  double gather_wait = 0;    // blocked in gather(): reads, copies, admission
  double gradient_wait = 0;  // blocked in gradients(): the buffer was still being reduced
  double drain = 0;          // end(): compute, reductions and gradient copies still under way
  double verdict = 0;        // end(): agreement of the ranks
  double update = 0;         // end(): the optimizer and its transfers, as far as it waited
};

struct StepResult {
  std::uint64_t step = 0;  // updates applied so far, this one included
  bool updated = false;    // false: nothing was reduced, or the step was skipped
  bool skipped = false;    // a gradient was not finite on some rank; every state is as before
  double grad_norm = 0;    // L2 norm over all ranks after gradient_scale and loss scale, unclipped
  double clip_factor = 1;
  double loss_scale = 1;          // of this step; the next one's is Session::loss_scale()
  bool pattern_repeated = false;  // the calls were those recorded for this pattern
  StepSeconds seconds;
  LinkBytes bytes;  // between begin_step() and end(), where the update before this one's may fall
};

// One step, from begin_step() to end(). A Step that ends without end() is abandoned: its gradients
// are dropped on this rank. With optimizer.in_backward that may leave no step whole, and the
// session has failed.
class [[nodiscard]] Step {
 public:
  Step(Step&&) noexcept;
  Step& operator=(Step&&) = delete;
  ~Step();

  // Collects the verdict of all ranks and starts the update of the weights, which goes on beside
  // the next forward (it does not with engine.look_ahead 0): a gather waits for its own unit only.
  // Blocks until the verdict. Throws the session's first error, or Error(numerics) for non-finite
  // gradients under `nonfinite: abort`; an error of the update comes from a later call.
  StepResult end();

 private:
  friend class SessionImpl;
  explicit Step(std::shared_ptr<SessionImpl> session) : session_(std::move(session)) {}

  std::shared_ptr<SessionImpl> session_;
};

// A run of elements of one tensor.
struct TensorSlice {
  UnitId unit;
  TensorId tensor;
  std::uint64_t offset_elems = 0;
  std::uint64_t count_elems = 0;
};

// Enqueues collectives of the program on `stream`, through `communicator` or by itself
// (to_cuda_stream). Must not block or call the session.
using IssueFunction = std::function<void(Communicator& communicator, StreamId stream)>;

// The same with values of another type, as a file holds them.
using FillRawFunction = std::function<void(const TensorSlice&, std::span<std::byte> values)>;
using FillFunction = std::function<void(const TensorSlice&, std::span<float> values)>;
using ReadFunction = std::function<void(const TensorSlice&, std::span<const float> values)>;

// Bytes of one tier as the session accounts for them.
struct TierUsage {
  Bytes budget;
  Bytes reserved;
  Bytes in_use;
  Bytes peak_in_use;
};

// How often a step stashes and unstashes each activation.
struct ActivationUses {
  std::uint32_t stashed = 0;
  std::uint32_t unstashed = 0;
};

// What a session stands on. open(model, config, communicator) makes these itself; tests and
// benchmarks hand in their own.
struct Backends {
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Device> device;     // null: as the configuration says
  std::unique_ptr<BlockIo> block_io;  // null: as the configuration says
  // Not null: the others are its ports, no state has values, and time is its own
  // (SimulatedMachine). Outlives the session.
  Simulation* simulation = nullptr;
};

// The communicator that fits how this process was launched and what `config.device` computes on:
// one rank when no launcher says otherwise; NCCL on GPUs; on CPUs MPI under an MPI launcher, else
// TCP. Throws what make_*_communicator() throws. Blocks until the ranks have met.
std::unique_ptr<Communicator> make_communicator(const Config& config, const LogSink& log = {});

struct SessionOptions {
  // Scratch that the trainer will ask for, so that open() proves it together with the rest.
  Bytes device_scratch = {};
  Bytes host_scratch = {};
  ActivationNeeds activations = {};
  LogSink log = {};
  Timeline* timeline = nullptr;  // borrowed; what the session does while it records
};

// Seconds for which each resource of this rank has worked since open().
struct BusySeconds {
  double nvme = 0;            // at least one request was under way
  double host_to_device = 0;  // of the streams of copies, collectives and updates
  double device_to_host = 0;
  double collectives = 0;
  double device_updates = 0;
  double workers = 0;  // summed over them
  unsigned worker_count = 0;

  BusySeconds& operator+=(const BusySeconds& other);
};
BusySeconds operator-(const BusySeconds& a, const BusySeconds& b);

class Session {
 public:
  // Checks the configuration, proves that memory fits, takes the NVMe directories and allocates.
  // Collective: when one rank fails all throw. Throws Error: config, budget_exceeded (with the
  // smallest budget that would do), io, no_space, in_use, not_supported, diverged (ranks opened
  // different models or configurations). Blocks.
  static Session open(const Model& model, const Config& config,
                      std::unique_ptr<Communicator> communicator, SessionOptions options = {});
  static Session open(const Model& model, const Config& config, Backends backends,
                      SessionOptions options = {});

  // What open() would reserve on one of `ranks` ranks, `ranks_per_node` of them on each host. Does
  // not touch the machine. `communicator_staging`: Communicator::staging_bytes().
  static MemoryPlan plan_memory(const Model& model, const Config& config, std::uint32_t ranks,
                                std::uint32_t ranks_per_node, const SessionOptions& options = {},
                                Bytes communicator_staging = {});

  // Whether a session of this configuration and communicator would run on a GPU of this machine:
  // what device.kind says, and what `auto` finds.
  static bool runs_on_gpu(const Config& config, const Communicator& communicator);

  Session(Session&&) noexcept;
  Session& operator=(Session&&) = delete;
  ~Session();

  // Measures what this machine does for this session, while all ranks do the same: its files,
  // copies, collectives, workers and device updates, for some seconds. Writes at most 600 MB to its
  // files. Collective, before any initialize(). Throws Error(invalid_argument) after it. Blocks.
  MachineRates probe();

  // Sets a unit's parameters (and zeroes its optimizer state). `fill` is called on this thread for
  // every run of elements that this rank holds, and only for those. Until a unit is initialized
  // its parameters are unspecified. Not inside a step. Blocks.
  void initialize(UnitId unit, const FillFunction& fill);

  // The same from values of type `source`, in several calls for a long run of elements. Masters of
  // 32 bits take them as they are: widening is exact, and is told to SessionOptions::log once.
  void initialize(UnitId unit, DType source, const FillRawFunction& fill);

  Step begin_step(StepOptions options = {});

  // What the program must multiply the loss by (that is: the gradients that it hands to reduce())
  // in the step under way, or in the next one. The update divides it out. 1 without loss scaling;
  // with it, reduce() throws Error(invalid_argument) in a step for which nobody asked.
  double loss_scale() const;

  // Brings a unit to the device. Returns when the shard is read and verified and everything else
  // is enqueued; work enqueued on `stream` afterwards sees the parameters that the step began with.
  // Throws Error(budget_exceeded), listing the live leases, when max_live_units are held, and with
  // optimizer.in_backward Error(invalid_argument) after the unit's last reduce() of the step. A
  // unit that is held already is held once more: as it was when it was gathered. Blocks.
  GatherLease gather(UnitId unit, StreamId stream);

  // Lends a zeroed gradient buffer. Throws Error(budget_exceeded) while another one is lent.
  // Blocks until the previous buffer is reduced.
  GradientLease gradients(UnitId unit, StreamId stream);

  // Sums the buffer over the ranks once the work enqueued on `stream` so far has run, and adds this
  // rank's shard to the unit's gradient. Throws Error(invalid_argument) naming the unit when all
  // declared reductions of this step were made already. Does not block on the data; with
  // optimizer.in_backward the last one waits for the unit's update of the step before.
  void reduce(GradientLease gradients, StreamId stream);

  // Lends a device buffer for activation `index` (below SessionOptions::activations.count), its
  // contents unspecified. When the lease ends they go to their home (placement.activation), from
  // which unstash() brings them back once in the same step. Both throw Error(invalid_argument)
  // while a lease of the same activation is held, as begin_step() does while any is, and
  // Error(budget_exceeded) when
  // activations.live leases are held. Block: stash() until a buffer is free, unstash() until the
  // activation has been read and its copy is enqueued. They are brought back ahead of the calls,
  // in the order of the step before.
  ActivationLease stash(std::uint32_t index, StreamId stream);
  // Throws Error(invalid_argument) when it was not stashed.
  ActivationLease unstash(std::uint32_t index, StreamId stream);

  // Runs a collective of the program's own (a tensor-parallel all-reduce, say) in the order of the
  // session's: `enqueue` is called once, on another thread, with the stream of all collectives.
  // What was enqueued on `stream` so far comes before it, what is enqueued on `stream` later comes
  // after. Every rank makes the call, at the same place of the step. Throws what `enqueue` throws,
  // and the session has then failed. Blocks until it is enqueued.
  void issue(StreamId stream, const IssueFunction& enqueue);

  // Reserves trainer memory in the device or host tier. What SessionOptions did not announce must
  // fit beside what engine.look_ahead has taken. Throws Error(budget_exceeded).
  ScratchLease scratch(Tier tier, Bytes size);

  // Charges bytes that others allocate (a CUDA context, a library's workspace) to the tier's
  // budget for as long as the lease lives; its memory() is empty. Throws Error(budget_exceeded).
  ScratchLease reserve_outside(Tier tier, Bytes size);

  // This rank's values of one state kind, widened to fp32: "param", "master" beside parameters of
  // 16 bits, and what the optimizer keeps ("moment1", "moment2"; "momentum" of sgd;
  // "sum_of_squares" of adagrad).
  // Not inside a step. Blocks.
  void read(UnitId unit, const std::string& kind, const ReadFunction& visit);

  // Waits until the updates of all steps that have ended are complete: published at their homes and
  // written. read(), weights_hash() and initialize() do so too. Throws their first error, which
  // close() could only log. Blocks.
  void synchronize();

  // A hash of the parameters and masters (of every state but gradients with `all_states`) over all
  // ranks. Independent of placement and of the number of ranks. Collective. Blocks.
  std::string weights_hash(bool all_states = false);

  Device& device();
  Communicator& communicator();
  const Model& model() const;
  const Config& config() const;
  const MemoryPlan& memory_plan() const;
  TierUsage usage(Tier tier) const;
  LinkBytes bytes_moved() const;  // since open()
  BusySeconds busy_seconds() const;
  StorageFacts storage_facts() const;
  // The types of all states, the optimizer and the loss scale in one line, for whoever reads a log.
  std::string precision_text() const;
  std::uint64_t completed_steps() const;  // of which the last may still be writing
  ScheduleFacts schedule_facts() const;

  // Bytes per parameter and step that this placement must move at least (docs/architecture.md,
  // "Bytes that must move"), for `micro_batches` of forward and backward over every unit.
  // By link, divided by this rank's share of the parameters.
  struct LinkFloor {
    double nvme_read = 0;
    double nvme_written = 0;
    double host_to_device = 0;
    double device_to_host = 0;
  };
  LinkFloor byte_floor(std::uint32_t micro_batches, ActivationUses activations = {}) const;

  // Waits for all work, gives everything back and removes the run's files; if leases are still
  // held, the last of them to end does so. Idempotent; the destructor calls it. Blocks, also on a
  // disk that does not answer: until then memory and files belong to it.
  void close();

 private:
  explicit Session(std::shared_ptr<SessionImpl> impl);
  SessionImpl& impl() const;  // throws Error(closed) after close()

  std::shared_ptr<SessionImpl> impl_;
};

}  // namespace strata
