#include "strata/session.hpp"

#include <exception>
#include <utility>

#include "layout/gradient_homes.hpp"
#include "session/factory.hpp"
#include "session/session_impl.hpp"
#include "strata/machine.hpp"

namespace strata {

LinkBytes& LinkBytes::operator+=(const LinkBytes& other) {
  nvme_read += other.nvme_read;
  nvme_written += other.nvme_written;
  host_to_device += other.host_to_device;
  device_to_host += other.device_to_host;
  gathered += other.gathered;
  reduced += other.reduced;
  return *this;
}

LinkBytes operator-(const LinkBytes& a, const LinkBytes& b) {
  return {a.nvme_read - b.nvme_read,
          a.nvme_written - b.nvme_written,
          a.host_to_device - b.host_to_device,
          a.device_to_host - b.device_to_host,
          a.gathered - b.gathered,
          a.reduced - b.reduced};
}

BusySeconds& BusySeconds::operator+=(const BusySeconds& other) {
  nvme += other.nvme;
  host_to_device += other.host_to_device;
  device_to_host += other.device_to_host;
  collectives += other.collectives;
  device_updates += other.device_updates;
  workers += other.workers;
  return *this;
}

BusySeconds operator-(const BusySeconds& a, const BusySeconds& b) {
  return {.nvme = a.nvme - b.nvme,
          .host_to_device = a.host_to_device - b.host_to_device,
          .device_to_host = a.device_to_host - b.device_to_host,
          .collectives = a.collectives - b.collectives,
          .device_updates = a.device_updates - b.device_updates,
          .workers = a.workers - b.workers,
          .worker_count = a.worker_count};
}

Step::Step(Step&&) noexcept = default;

Step::~Step() {
  if (session_) session_->abandon_step();
}

StepResult Step::end() {
  if (!session_) throw Error(ErrorCode::invalid_argument, "end() of a step that has ended");
  const auto session = std::exchange(session_, nullptr);
  try {
    return session->end_step();
  } catch (...) {
    session->abandon_step();
    throw;
  }
}

Session Session::open(const Model& model, const Config& config,
                      std::unique_ptr<Communicator> communicator, SessionOptions options) {
  Backends backends;
  backends.communicator = std::move(communicator);
  return open(model, config, std::move(backends), std::move(options));
}

Session Session::open(const Model& model, const Config& config, Backends backends,
                      SessionOptions options) {
  auto impl = std::make_shared<SessionImpl>(model, config, std::move(backends), std::move(options));
  impl->open();
  return Session(std::move(impl));
}

MemoryPlan Session::plan_memory(const Model& model, const Config& config, std::uint32_t ranks,
                                std::uint32_t ranks_per_node, const SessionOptions& options,
                                Bytes communicator_staging) {
  config.validate();
  const Layout layout = make_layout(model, ranks);
  const StateTable table = state_table_for(model, config);
  const std::uint64_t tile_elems = config.engine.tile / size_of(DType::fp32);
  const auto budgets = budgets_of_rank(config, ranks_per_node);
  const MemoryExtras extras{.device_scratch = options.device_scratch,
                            .host_scratch = options.host_scratch,
                            .communicator_staging = communicator_staging,
                            .activations = options.activations};
  const Config::Placement homes = with_gradient_homes(layout, table, config, budgets, extras);
  MemoryPlan plan = strata::plan_memory(
      layout, table, make_placement(layout, table, homes, tile_elems), config, budgets, extras);
  add_look_ahead(plan, layout, table, affordable_look_ahead(layout, table, config, plan));
  return plan;
}

bool Session::runs_on_gpu(const Config& config, const Communicator& communicator) {
  return strata::runs_on_gpu(config, communicator, {});
}

Session::Session(std::shared_ptr<SessionImpl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;

Session::~Session() {
  // Peers must not wait for a rank that leaves by an exception.
  if (impl_ && std::uncaught_exceptions() > 0) {
    impl_->communicator().abort("the trainer of another rank ended with an exception");
  }
  close();
}

void Session::close() { impl_.reset(); }

SessionImpl& Session::impl() const {
  if (!impl_) throw Error(ErrorCode::closed, "the session is closed");
  return *impl_;
}

void Session::initialize(UnitId unit, const FillFunction& fill) { impl().initialize(unit, fill); }
void Session::initialize(UnitId unit, DType source, const FillRawFunction& fill) {
  impl().initialize(unit, source, fill);
}
Step Session::begin_step(StepOptions options) { return impl().begin_step(std::move(options)); }
GatherLease Session::gather(UnitId unit, StreamId stream) { return impl().gather(unit, stream); }
GradientLease Session::gradients(UnitId unit, StreamId stream) {
  return impl().gradients(unit, stream);
}
void Session::issue(StreamId stream, const IssueFunction& enqueue) {
  impl().issue(stream, enqueue);
}
void Session::reduce(GradientLease gradients, StreamId stream) {
  impl().reduce(std::move(gradients), stream);
}
ActivationLease Session::stash(std::uint32_t index, StreamId stream) {
  return impl().stash(index, stream);
}
ActivationLease Session::unstash(std::uint32_t index, StreamId stream) {
  return impl().unstash(index, stream);
}
ScratchLease Session::scratch(Tier tier, Bytes size) { return impl().scratch(tier, size); }
ScratchLease Session::reserve_outside(Tier tier, Bytes size) {
  return impl().reserve_outside(tier, size);
}
void Session::read(UnitId unit, const std::string& kind, const ReadFunction& visit) {
  impl().read(unit, kind, visit);
}
std::string Session::weights_hash(bool all_states) { return impl().weights_hash(all_states); }
Device& Session::device() { return impl().device(); }
Communicator& Session::communicator() { return impl().communicator(); }
const Model& Session::model() const { return impl().model(); }
const Config& Session::config() const { return impl().config(); }
const MemoryPlan& Session::memory_plan() const { return impl().memory_plan(); }
TierUsage Session::usage(Tier tier) const { return impl().usage(tier); }
BusySeconds Session::busy_seconds() const { return impl().busy_seconds(); }
MachineRates Session::probe() { return impl().probe(); }
LinkBytes Session::bytes_moved() const { return impl().bytes_moved(); }

StorageFacts Session::storage_facts() const { return impl().storage_facts(); }
std::uint64_t Session::completed_steps() const { return impl().completed_steps(); }
void Session::synchronize() { impl().finish_update(); }
ScheduleFacts Session::schedule_facts() const { return impl().schedule_facts(); }
double Session::loss_scale() const { return impl().loss_scale(); }
std::string Session::precision_text() const { return impl().precision_text(); }
Session::LinkFloor Session::byte_floor(std::uint32_t micro_batches,
                                       ActivationUses activations) const {
  return impl().byte_floor(micro_batches, activations);
}

}  // namespace strata
