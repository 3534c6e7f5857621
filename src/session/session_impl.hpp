// What stands behind Session: the parts in the order in which they depend on each other, the
// state of the step in progress, and the rules of the program (which call is legal when).
// Thread: as Session.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cpus.hpp"
#include "engine/engine.hpp"
#include "engine/state_map.hpp"
#include "engine/timeline_marks.hpp"
#include "layout/layout.hpp"
#include "layout/memory_floor.hpp"
#include "memory/budget.hpp"
#include "memory/extent_store.hpp"
#include "memory/range_allocator.hpp"
#include "optim/loss_scale.hpp"
#include "optim/optimizer.hpp"
#include "plan/pattern_book.hpp"
#include "ports/simulation.hpp"
#include "strata/session.hpp"

namespace strata {

StateTable state_table_for(const Model& model, const Config& config);
std::array<Bytes, kTierCount> budgets_of_rank(const Config& config, std::uint32_t ranks_per_node);

class SessionImpl : public std::enable_shared_from_this<SessionImpl> {
 public:
  SessionImpl(const Model& model, const Config& config, Backends backends, SessionOptions options);
  ~SessionImpl();
  SessionImpl(const SessionImpl&) = delete;
  SessionImpl& operator=(const SessionImpl&) = delete;

  // The second half of Session::open(): everything that can fail.
  void open();

  void initialize(UnitId unit, const FillFunction& fill);
  void initialize(UnitId unit, DType source, const FillRawFunction& fill);
  Step begin_step(StepOptions options);
  GatherLease gather(UnitId unit, StreamId stream);
  GradientLease gradients(UnitId unit, StreamId stream);
  void reduce(GradientLease lease, StreamId stream);
  void issue(StreamId stream, const IssueFunction& enqueue);
  ActivationLease stash(std::uint32_t index, StreamId stream);
  ActivationLease unstash(std::uint32_t index, StreamId stream);
  StepResult end_step();
  void abandon_step() noexcept;
  ScratchLease scratch(Tier tier, Bytes size);
  ScratchLease reserve_outside(Tier tier, Bytes size);
  void read(UnitId unit, const std::string& kind, const ReadFunction& visit);
  std::string weights_hash(bool all_states);
  void finish_update();

  // The engine's half of ending leases.
  void end_gather(UnitId unit, GatheringId gathering, std::span<const StreamId> streams,
                  const TimelineMarks::Mark& mark) noexcept;
  void end_gradients(StreamId stream) noexcept;
  void end_activation(std::uint32_t index, ActivationLease::AtEnd what, StreamId stream) noexcept;
  void end_scratch(std::span<std::byte> memory) noexcept { surplus_.release(memory); }
  TensorView tensor_view(UnitId unit, TensorId tensor, std::span<std::byte> buffer) const;
  GradientView gradient_view(UnitId unit, TensorId tensor, std::span<std::byte> buffer);

  TierUsage usage(Tier tier) const;
  LinkBytes bytes_moved() const;
  BusySeconds busy_seconds() const;
  MachineRates probe();
  StorageFacts storage_facts() const;
  std::string precision_text() const;
  Session::LinkFloor byte_floor(std::uint32_t micro_batches, ActivationUses activations) const;

  Device& device() { return *device_; }
  Communicator& communicator() { return *communicator_; }
  const Model& model() const { return model_; }
  const Config& config() const { return config_; }
  const MemoryPlan& memory_plan() const { return plan_; }
  std::uint64_t completed_steps() const { return completed_steps_; }
  ScheduleFacts schedule_facts() const {
    const ScheduleCounters& counters = patterns_.counters();
    return {.steps = counters.steps,
            .followed = counters.followed,
            .deviations = counters.deviations,
            .gather_slots = geometry_.gather_slots()};
  }
  double loss_scale() {
    asked_loss_scale_ = true;
    return loss_scale_.value();
  }

 private:
  struct StepState {
    bool active = false;
    StepOptions options;
    std::vector<std::uint32_t> reductions;  // made so far, by unit
    std::vector<UnitId> reduce_order;       // units in the order of their latest reduction
    std::vector<std::uint8_t> present;      // by global tensor index
    std::vector<std::uint8_t> updated;      // by unit: its update has begun before the verdict
    StepSeconds seconds;
    std::int64_t begin_ns = 0;
    std::uint64_t calls = 0;  // that all ranks make at the same place of the step
    LinkBytes bytes_before;
  };

  // What all ranks know after the verdict.
  struct Verdict {
    bool nonfinite = false;
    double sum_of_squares = 0;
    std::vector<std::uint8_t> present;
  };

  void make_geometry();
  void agree_on_look_ahead();
  // Which CPUs the workers of this rank get. Collective.
  WorkerPlan divide_cpus();
  void allocate(const CpuSet& cpus);
  void agree_on_session();

  // Runs `call`, and on a fatal Error fails the session and tells the peers.
  template <class Call>
  auto guarded(Call&& call);
  void fail(const Error& error) noexcept;
  bool has_failed();
  Error first_failure();  // pre: has_failed()
  // Which step the states are whole at after an error, as a clause of its message.
  std::string state_of_states(ErrorCode error) const;
  void require_step(bool active, std::string_view call) const;
  // Notes the call and agrees on it with the other ranks where no schedule says that they make it.
  void make_call(ProgramCall call);
  void agree(ProgramCall call, bool held);
  bool holds(UnitId unit) const;
  // Starts what the call brings forward.
  void run_ahead();
  // Takes the leases that have ended into account.
  void note_releases();
  void begin_pattern();
  // After a call that the program may correct.
  void spoil_pattern();
  // Whether the update of `unit`, whose last reduction this is, need not wait for the verdict.
  bool updates_early(UnitId unit) const;
  // Whether updates of the step under way have begun.
  bool updates_began() const;
  void check_unit(UnitId unit) const;
  void check_activation(std::uint32_t index, std::string_view call) const;
  ActivationLease lease_of(std::uint32_t index, StreamId stream,
                           const Engine::LentActivation& lent);
  void check_step_options(const StepOptions& options) const;

  std::uint32_t declared_reductions(UnitId unit) const;
  std::uint64_t tensor_index(UnitId unit, TensorId tensor) const {
    return first_tensor_[unit.value] + tensor.value;
  }
  Verdict agree_on_verdict(const LocalVerdict& local);
  // `factor`: what gradients are multiplied by.
  void start_update(const Verdict& verdict, double factor);
  void follow_loss_scale(bool skipped);
  // That of the step under way, without clipping.
  double gradient_factor() const { return step_.options.gradient_scale / loss_scale_.value(); }
  // Of the unit's tensors that are `present`.
  void find_coefficients(UnitId unit, const std::vector<std::uint8_t>& present, double factor);
  KindId kind_named(const std::string& name) const;
  std::uint64_t hash_kind(UnitId unit, KindId kind);

  const Model model_;
  const Config config_;
  const SessionOptions options_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<BlockIo> io_;
  const LogSink log_;
  Simulation* const simulation_;  // may be null
  const SteadyClock steady_clock_;
  const Clock& clock_;
  LossScale loss_scale_;
  bool asked_loss_scale_ = false;  // for the step under way or the next one

  std::optional<TimelineMarks> marks_;  // from open() on
  StateGeometry geometry_;
  MemoryPlan plan_;
  std::vector<std::unique_ptr<Budget>> budgets_;            // by tier
  std::vector<std::unique_ptr<Reservation>> reservations_;  // by line of the plan, scratch left out
  std::unique_ptr<ExtentStore> store_;
  std::unique_ptr<StateMap> map_;
  std::vector<Lease> at_rest_;
  RangeAllocator surplus_;
  std::unique_ptr<Engine> engine_;
  unsigned workers_ = 0;

  std::vector<std::uint64_t> first_tensor_;    // by unit: global index of its first tensor
  std::vector<std::uint64_t> tensor_updates_;  // by global tensor index
  std::uint64_t completed_steps_ = 0;
  std::uint64_t step_being_applied_ = 0;
  std::vector<UnitId> held_;  // by gather leases, one entry for each
  std::atomic<std::uint32_t> live_activations_ = 0;
  std::mutex leases_mutex_;
  std::vector<UnitId> ended_leases_;  // not taken from held_ yet; guarded by leases_mutex_
  bool told_widening_ = false;
  std::vector<bool> initialized_;                                // by unit
  std::vector<std::optional<UpdateCoefficients>> coefficients_;  // by global tensor index
  std::vector<UnitId> update_order_;
  TileRuns find_runs_;
  StepState step_;
  PatternBook patterns_;
  std::mutex failure_mutex_;
  std::optional<Error> failure_;  // guarded by failure_mutex_
};

}  // namespace strata
