// Opening and closing a session.
#include "session/session_impl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>

#include "base/check.hpp"
#include "base/rng.hpp"
#include "layout/gradient_homes.hpp"
#include "plan/byte_floor.hpp"
#include "session/agreement.hpp"
#include "session/factory.hpp"

namespace strata {

UpdateRule update_rule_of(const Config::Optimizer& optimizer) {
  if (optimizer.name == "sgd") {
    if (optimizer.momentum == 0) return UpdateRule::sgd;
    return optimizer.nesterov ? UpdateRule::nesterov : UpdateRule::momentum;
  }
  for (const UpdateRule rule : kUpdateRules) {
    if (name_of(rule) == optimizer.name) return rule;
  }
  STRATA_ASSERT(false, "the configuration was checked");
}

StateTable state_table_for(const Model& model, const Config& config) {
  const bool reduced_twice = std::ranges::any_of(
      model.units(), [](const UnitSpec& unit) { return unit.options.reduces_per_micro_batch > 1; });
  return make_state_table(update_rule_of(config.optimizer),
                          {.param = config.precision.param,
                           .wire = config.precision.reduce,
                           .wide_gradients = config.precision.wide_gradients,
                           .accumulates = reduced_twice || config.engine.max_micro_batches > 1,
                           .fp32_masters = config.precision.master == Config::Masters::fp32,
                           .moments = config.precision.moments});
}

std::array<Bytes, kTierCount> budgets_of_rank(const Config& config, std::uint32_t ranks_per_node) {
  const std::uint64_t sharers =
      config.budgets.scope == Config::BudgetScope::per_node ? ranks_per_node : 1;
  return {config.budgets.device / sharers, config.budgets.host / sharers,
          config.budgets.nvme / sharers};
}

namespace {

std::int64_t in_ns(double seconds) {
  return static_cast<std::int64_t>(std::llround(seconds * 1e9));
}

// The program may change its directory while the session lives.
std::vector<std::string> absolute_paths(std::vector<std::string> paths) {
  for (std::string& path : paths) path = std::filesystem::absolute(path).lexically_normal();
  return paths;
}

Config::LossScale resolved(const Config& config) {
  Config::LossScale settings = config.loss_scale;
  settings.kind = config.resolved_loss_scale();
  return settings;
}

// A sink that is called from several threads, but never by two at once, and that does not throw.
LogSink one_at_a_time(const LogSink& sink) {
  if (!sink) return {};
  return [sink, mutex = std::make_shared<std::mutex>()](LogLevel level, std::string_view message) {
    const std::scoped_lock lock(*mutex);
    try {
      sink(level, message);
    } catch (...) {
      // A message that cannot be told must not end what it tells about.
    }
  };
}

}  // namespace

SessionImpl::SessionImpl(const Model& model, const Config& config, Backends backends,
                         SessionOptions options)
    : model_(model),
      config_(config),
      options_(std::move(options)),
      communicator_(std::move(backends.communicator)),
      device_(std::move(backends.device)),
      io_(std::move(backends.block_io)),
      log_(one_at_a_time(options_.log)),
      simulation_(backends.simulation),
      clock_(simulation_ == nullptr ? static_cast<const Clock&>(steady_clock_) : *simulation_),
      loss_scale_(resolved(config_)) {
  STRATA_ASSERT(communicator_ != nullptr, "a session needs a communicator");
}

SessionImpl::~SessionImpl() {
  // The last chance to tell that the last update was lost.
  if (engine_ && engine_->updating() && !has_failed()) {
    try {
      engine_->finish_update();
    } catch (const std::exception& error) {
      if (log_) log_(LogLevel::warning, error.what());
    }
  }
  engine_.reset();
  at_rest_.clear();
  if (io_) io_->use_memory({});
  map_.reset();
  try {
    if (store_) store_->close();
  } catch (const Error& error) {
    if (log_) log_(LogLevel::warning, error.what());
  }
  communicator_.reset();  // it uses the device
  if (device_) device_->close();
}

void SessionImpl::open() {
  communicator_->set_timeout(std::chrono::milliseconds(
      static_cast<std::int64_t>(std::llround(config_.communicator.timeout_s * 1000))));
  const WorkerPlan workers = divide_cpus();
  std::optional<Error> mine;
  try {
    config_.validate();
    make_geometry();
    plan_.require_fit();
  } catch (const Error& error) {
    mine = error;
  }
  agree_on_look_ahead();
  try {
    if (mine) throw Error(*mine);
    if (!device_) {
      const Bytes budget = plan_.budgets[static_cast<std::size_t>(Tier::device)];
      device_ = make_device(config_, budget - config_.outside.device, *communicator_, log_);
    }
    if (!io_) io_ = make_block_io(config_, log_);
    allocate(workers.cpus);
  } catch (const Error& error) {
    mine = error;
  }
  agree_on_success(*communicator_, mine ? &*mine : nullptr, "open the session");
  agree_on_session();
  communicator_->attach(*device_);
  const auto reservation = [&](Tier tier, MemoryPurpose purpose) -> Reservation& {
    static const std::string none = "none";
    for (std::size_t i = 0; i < plan_.lines.size(); ++i) {
      if (plan_.lines[i].tier == tier && plan_.lines[i].purpose == purpose) {
        return *reservations_[i];
      }
    }
    reservations_.push_back(
        std::make_unique<Reservation>(*budgets_[static_cast<std::size_t>(tier)], none, Bytes{}));
    return *reservations_.back();
  };
  const EngineReservations engine_reservations{
      .gathers = reservation(Tier::device, MemoryPurpose::gathers),
      .gradient_buffer = reservation(Tier::device, MemoryPurpose::gradient_buffer),
      .staging_gather = reservation(Tier::host, MemoryPurpose::staging_gather),
      .staging_gradient = reservation(Tier::host, MemoryPurpose::staging_gradient),
      .staging_update = reservation(Tier::host, MemoryPurpose::staging_update),
      .staging_checkpoint = reservation(Tier::host, MemoryPurpose::staging_checkpoint),
      .activation_slots = reservation(Tier::device, MemoryPurpose::activation_slots),
      .staging_activation = reservation(Tier::host, MemoryPurpose::staging_activation)};
  if (log_) {
    log_(LogLevel::info, workers.summary);
    if (!workers.warning.empty()) log_(LogLevel::warning, workers.warning);
  }
  workers_ = workers.count;
  marks_.emplace(options_.timeline, *device_, clock_);
  engine_ = std::make_unique<Engine>(
      geometry_, *map_, *device_, *io_, *store_, *communicator_, engine_reservations,
      EngineOptions{.workers = workers.count,
                    .worker_cpus = workers.cpus,
                    .verify = config_.nvme.verify == Config::Verify::always,
                    .io_retry_ns = in_ns(config_.nvme.retry_s),
                    .io_timeout_ns = in_ns(config_.nvme.timeout_s),
                    .log = log_,
                    .simulation = simulation_,
                    .marks = &*marks_});
  find_runs_ = [this](std::uint32_t s, const Tile& tile, std::vector<UpdateRun>& runs) {
    const Segment& segment = geometry_.layout.segments[s];
    for_each_tensor_part(segment, geometry_.rank, tile.begin_elems,
                         tile.begin_elems + tile.count_elems, [&](const TensorPart& part) {
                           const auto& found =
                               coefficients_[tensor_index(segment.unit, part.tensor.tensor)];
                           if (found)
                             runs.push_back({part.offset_in_range_elems, part.count_elems, *found});
                         });
  };
  if (log_) log_(LogLevel::info, precision_text());
}

std::string SessionImpl::precision_text() const {
  const StateTable& table = geometry_.table;
  std::string text = fmt::format(
      "precision: parameters {}, gradients {} on the wire and {} at rest",
      name_of(table[kParamKind].dtype), name_of(table.wire), name_of(table[kGradKind].dtype));
  text += table.has_masters() ? fmt::format(", masters {}", name_of(table[table.master].dtype))
                              : std::string(", no masters beside the parameters");
  if (moments_of(table.rule) > 0) {
    text += fmt::format(", moments {}", name_of(table[table.first_moment].dtype));
  }
  text += fmt::format("; {}", name_of(table.rule));
  if (loss_scale_.scales()) {
    text += fmt::format("; loss scale {} {}", loss_scale_.dynamic() ? "dynamic, from" : "static,",
                        loss_scale_.value());
  }
  return text;
}

void SessionImpl::make_geometry() {
  StateGeometry& g = geometry_;
  g.rank = communicator_->rank();
  g.layout = make_layout(model_, communicator_->size());
  g.table = state_table_for(model_, config_);
  g.tile_elems = config_.engine.tile / size_of(DType::fp32);
  const auto budgets = budgets_of_rank(config_, communicator_->host_size());
  const MemoryExtras extras{.device_scratch = options_.device_scratch,
                            .host_scratch = options_.host_scratch,
                            .communicator_staging = communicator_->staging_bytes(),
                            .activations = options_.activations};
  const Config::Placement homes = with_gradient_homes(g.layout, g.table, config_, budgets, extras);
  g.placement = make_placement(g.layout, g.table, homes, g.tile_elems);
  if (log_ && config_.placement.grad.automatic) {
    log_(LogLevel::info,
         fmt::format("gradients rest {:.0f}% on the device, {:.0f}% on the host, {:.0f}% in files",
                     100 * homes.grad.device, 100 * homes.grad.host, 100 * homes.grad.nvme));
  }
  g.max_live_units = config_.engine.max_live_units;
  for (std::uint32_t u = 0; u < g.layout.units.size(); ++u) {
    g.gather_slot = std::max(g.gather_slot, gathered_bytes(g.layout, g.table, UnitId{u}));
    g.gradient_slot = std::max(g.gradient_slot, lent_gradient_bytes(g.layout, g.table, UnitId{u}));
  }
  g.staging = plan_staging(g.layout, g.table, g.placement, g.tile_elems);
  g.activations = plan_activations(options_.activations, config_.placement.activation);
  plan_ = strata::plan_memory(g.layout, g.table, g.placement, config_, budgets, extras);
  MemoryPlan floor = plan_;
  if (device_) {  // handed in, with an arena of its own size
    Bytes& budget = floor.budgets[static_cast<std::size_t>(Tier::device)];
    budget = std::min(budget, Bytes{device_->arena().size()} + config_.outside.device);
  }
  g.look_ahead = affordable_look_ahead(g.layout, g.table, config_, floor);
  std::uint64_t tensors = 0;
  for (const UnitSpec& unit : model_.units()) {
    first_tensor_.push_back(tensors);
    tensors += unit.tensors.size();
  }
  tensor_updates_.assign(tensors, 0);
  coefficients_.resize(tensors);
  initialized_.assign(model_.units().size(), false);
}

// Schedules are equal on all ranks, so slots are as many as the poorest rank affords.
void SessionImpl::agree_on_look_ahead() {
  LookAheadBuffers& buffers = geometry_.look_ahead;
  GatherSlots slots{.program = geometry_.max_live_units, .ahead = buffers.gathers};
  if (communicator_->size() > 1) {
    const auto all = communicator_->exchange(std::as_bytes(std::span(&slots, 1)));
    for (std::size_t at = 0; at < all.size(); at += sizeof(GatherSlots)) {
      GatherSlots theirs;
      std::memcpy(&theirs, all.data() + at, sizeof(theirs));
      slots.program = std::min(slots.program, theirs.program);
      slots.ahead = std::min(slots.ahead, theirs.ahead);
    }
  }
  buffers.gathers = slots.ahead;
  add_look_ahead(plan_, geometry_.layout, geometry_.table, buffers);
  patterns_ = PatternBook(slots);
}

// Each rank sees its own CPUs only: the ranks tell each other, to know which of them are shared.
WorkerPlan SessionImpl::divide_cpus() {
  const CpuFacts facts = read_cpu_facts("", cpus_of_this_thread());
  const CpuClaim mine = claim_of(facts, communicator_->host_rank().value);
  std::vector<CpuClaim> claims(communicator_->size(), mine);
  if (claims.size() > 1) {
    const auto all = communicator_->exchange(std::as_bytes(std::span(&mine, 1)));
    std::memcpy(claims.data(), all.data(), all.size());
  }
  return plan_workers(facts, claims, communicator_->rank().value, config_.engine.workers);
}

void SessionImpl::allocate(const CpuSet& cpus) {
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    budgets_.push_back(
        std::make_unique<Budget>(tier, plan_.budgets[static_cast<std::size_t>(tier)]));
  }
  for (const MemoryLine& line : plan_.lines) {
    const bool promised_later = line.purpose == MemoryPurpose::scratch;
    reservations_.push_back(
        std::make_unique<Reservation>(*budgets_[static_cast<std::size_t>(line.tier)], line.what,
                                      promised_later ? Bytes{} : line.size));
    const bool used_from_the_start =
        line.purpose == MemoryPurpose::at_rest || line.purpose == MemoryPurpose::spare_slots ||
        line.purpose == MemoryPurpose::gradient_sums ||
        line.purpose == MemoryPurpose::activations || line.purpose == MemoryPurpose::communicator ||
        line.purpose == MemoryPurpose::outside;
    if (used_from_the_start) at_rest_.push_back(reservations_.back()->lease(line.size));
  }
  store_ = std::make_unique<ExtentStore>(
      *io_, ExtentStoreOptions{.directories = absolute_paths(config_.nvme.directories),
                               .weights = config_.nvme.weights,
                               .run = config_.nvme.run,
                               .rank = communicator_->rank(),
                               .allow_tmpfs = config_.nvme.allow_tmpfs});
  {
    const ThreadOnCpus nearby(cpus);  // host memory is touched first here
    map_ = std::make_unique<StateMap>(geometry_, *device_, *store_,
                                      StateMap::Options{.spare_slots = config_.nvme.spare_slots,
                                                        .addresses_only = simulation_ != nullptr,
                                                        .log = log_});
  }
  surplus_ = RangeAllocator(map_->device_surplus());
  io_->use_memory(map_->staging_memory());
  store_->open();
  if (simulation_ != nullptr) {
    store_->assume_written();
    initialized_.assign(model_.units().size(), true);
  }
}

namespace {

std::uint64_t hash_text(std::uint64_t seed, std::string_view text) {
  for (const char c : text) seed = rng::at(seed, static_cast<unsigned char>(c));
  return seed;
}

}  // namespace

void SessionImpl::agree_on_session() {
  std::uint64_t model_hash = 0;
  for (const UnitSpec& unit : model_.units()) {
    model_hash = hash_text(model_hash, unit.name);
    model_hash = rng::at(model_hash, unit.options.reduces_per_micro_batch);
    for (const TensorSpec& tensor : unit.tensors) {
      model_hash = hash_text(model_hash, tensor.name);
      for (const std::uint64_t extent : tensor.shape) model_hash = rng::at(model_hash, extent);
      model_hash = rng::at(model_hash, tensor.group * 2 + (tensor.trainable ? 1 : 0));
    }
  }
  communicator_->agree(std::as_bytes(std::span(&model_hash, 1)), "the model");
  // Placement, budgets and directories may differ between ranks; what decides bits may not.
  Config shared;
  shared.precision = config_.precision;
  shared.optimizer = config_.optimizer;
  shared.loss_scale = config_.loss_scale;
  shared.engine.max_micro_batches = config_.engine.max_micro_batches;
  const std::uint64_t config_hash = hash_text(0, shared.to_json());
  communicator_->agree(std::as_bytes(std::span(&config_hash, 1)),
                       "precision, optimizer, loss_scale or engine.max_micro_batches");
}

TierUsage SessionImpl::usage(Tier tier) const {
  const Budget& budget = *budgets_[static_cast<std::size_t>(tier)];
  return {budget.limit(), budget.reserved(), budget.in_use(), budget.peak_in_use()};
}

LinkBytes SessionImpl::bytes_moved() const {
  const EngineCounters engine = engine_->counters();
  const IoCounters io = io_->counters();
  return {.nvme_read = io.read,
          .nvme_written = io.written,
          .host_to_device = Bytes{engine.host_to_device},
          .device_to_host = Bytes{engine.device_to_host},
          .gathered = Bytes{engine.gathered},
          .reduced = Bytes{engine.reduced}};
}

BusySeconds SessionImpl::busy_seconds() const {
  const EngineSeconds engine = engine_->busy_seconds();
  return {.nvme = io_->counters().busy_seconds,
          .host_to_device = engine.host_to_device,
          .device_to_host = engine.device_to_host,
          .collectives = engine.collectives,
          .device_updates = engine.device_updates,
          .workers = engine.workers,
          .worker_count = workers_};
}

StorageFacts SessionImpl::storage_facts() const {
  if (store_->allocated() == Bytes{}) return {};
  return {.backend = std::string(io_->name()),
          .direct = store_->direct(),
          .registered = io_->uses_registered_memory(),
          .page_size = map_->staging_page_size(),
          .verified = config_.nvme.verify == Config::Verify::always};
}

Session::LinkFloor SessionImpl::byte_floor(std::uint32_t micro_batches, ActivationUses uses) const {
  const ByteFloor total =
      strata::byte_floor(geometry_.layout, geometry_.table, geometry_.placement, micro_batches);
  const double share =
      static_cast<double>(model_.count_elems()) / static_cast<double>(communicator_->size());
  const ActivationPlan& activations = geometry_.activations;
  const auto off_device =
      static_cast<double>(activations.homes.size() - activations.count(Tier::device)) *
      static_cast<double>(activations.size.value);
  const auto on_nvme =
      activations.count(Tier::nvme) *
      static_cast<double>(activation_file_bytes(activations, geometry_.staging.slab).value);
  return {(total.nvme_read + uses.unstashed * on_nvme) / share,
          (total.nvme_written + uses.stashed * on_nvme) / share,
          (total.host_to_device + uses.unstashed * off_device) / share,
          (total.device_to_host + uses.stashed * off_device) / share};
}

}  // namespace strata
