#include "engine/engine.hpp"

#include <fmt/format.h>

namespace strata {

Engine::Engine(const StateGeometry& geometry, const StateMap& map, Device& device, BlockIo& io,
               ExtentStore& store, Communicator& communicator,
               const EngineReservations& reservations, const EngineOptions& options)
    : g_(geometry),
      map_(map),
      device_(device),
      communicator_(communicator),
      log_(options.log),
      marks_(*options.marks),
      workers_(options.simulation != nullptr
                   ? options.simulation->workers()
                   : own_workers_.emplace(options.workers, options.worker_cpus, options.log)),
      executor_(device, io, workers_, options.io_timeout_ns, options.simulation),
      tile_io_(executor_, store,
               {.verify = options.verify,
                .retry_ns = options.io_retry_ns,
                .log = options.log,
                .name = [this](ExtentId extent) { return name_of(extent); },
                .marks = &marks_}),
      copy_in_stream_(device.create_stream("copy in")),
      copy_out_stream_(device.create_stream("copy out")),
      collective_stream_(device.create_stream("collectives")),
      update_stream_(device.create_stream("update")),
      gather_slots_(executor_, reservations.gathers, map.gather_slots()),
      gradient_slots_(executor_, reservations.gradient_buffer, map.gradient_slots()),
      gather_slabs_(executor_, reservations.staging_gather, map.staging().gather),
      gradient_slabs_(executor_, reservations.staging_gradient, map.staging().gradient),
      update_slabs_(executor_, reservations.staging_update, map.staging().update),
      checkpoint_slabs_(executor_, reservations.staging_checkpoint, map.staging().checkpoint),
      activation_slots_(executor_, reservations.activation_slots, map.activation_slots()),
      activation_slabs_(executor_, reservations.staging_activation, map.staging().activation),
      collectives_(executor_),
      activations_(geometry.activations.homes.size()) {
  for (std::size_t u = 0; u < geometry.layout.units.size(); ++u) units_.emplace_back(executor_);
  executor_.enter_into(&marks_);
  if (options.simulation == nullptr) thread_.emplace(executor_);
}

Engine::~Engine() {
  drain();
  thread_.reset();
}

TileName Engine::name_of(ExtentId extent) const {
  const ExtentOwner& owner = map_.owner(extent);
  if (owner.activation) {
    return {.kind = fmt::format("activation {}", *owner.activation), .unit = "", .rank = g_.rank};
  }
  const Segment& segment = g_.layout.segments[owner.segment];
  return {.kind = g_.table[owner.kind].name,
          .unit = g_.layout.units[segment.unit.value].name,
          .rank = g_.rank};
}

void Engine::look_ahead(LookAhead gathers) {
  executor_.start(background_, look_ahead_task(gathers));
}

void Engine::drop_look_ahead(std::optional<UnitId> kept) {
  executor_.start(background_, drop_task(kept));
}

Engine::Gathered Engine::gather(UnitId unit, bool shares, LookAhead next) {
  return executor_.run_blocking(gather_task(unit, shares, next));
}

void Engine::release_gather(GatheringId id, const LastUses& last_uses) {
  executor_.start(background_, release_task(id, last_uses));
}

Engine::GradientBuffers Engine::acquire_gradients(UnitId unit) {
  return executor_.run_blocking(acquire_gradients_task(unit));
}

void Engine::reduce(UnitId unit, Event written, Contribution contribution) {
  executor_.start(reductions_, reduce_task(unit, written, contribution));
}

void Engine::drop_gradients(Event last_use) {
  executor_.start(background_, drop_gradients_task(last_use));
}

Event Engine::issue(Event before, const std::function<void(Communicator&, StreamId)>& enqueue) {
  return executor_.run_blocking(issue_task(before, enqueue));
}

LocalVerdict Engine::finish_gradients(const std::vector<UnitId>& reduced,
                                      const std::vector<UnitId>& incomplete) {
  return executor_.run_blocking(finish_task(reduced, incomplete));
}

void Engine::start_update(const std::vector<UnitId>& units, const TileRuns& runs) {
  units_to_update_ += units.size();
  executor_.start(updates_, update_task(units, runs));
}

void Engine::finish_update() { executor_.run_blocking(finish_update_task()); }

void Engine::finish_update(UnitId unit) { executor_.run_blocking(updated(unit)); }

void Engine::settle() { executor_.run_blocking(settle_task()); }

SlabSet Engine::borrow_checkpoint_slabs(std::size_t count) {
  return executor_.run_blocking(borrow_task(count));
}

void Engine::return_checkpoint_slabs(SlabSet slabs) {
  executor_.run_blocking(return_task(std::move(slabs)));
}

void Engine::store_tile(std::uint32_t segment, std::uint32_t tile, KindId kind, std::byte* data) {
  executor_.run_blocking(store_task(segment, tile, kind, data));
}

void Engine::load_tile(std::uint32_t segment, std::uint32_t tile, KindId kind, std::byte* data) {
  executor_.run_blocking(load_task(segment, tile, kind, data));
}

EngineCounters Engine::counters() const {
  return {copied_in_.load(), copied_out_.load(), gathered_.load(), reduced_.load()};
}

EngineSeconds Engine::busy_seconds() const {
  return {.host_to_device = device_.busy_seconds(copy_in_stream_),
          .device_to_host = device_.busy_seconds(copy_out_stream_),
          .collectives = device_.busy_seconds(collective_stream_),
          .device_updates = device_.busy_seconds(update_stream_),
          .workers = workers_.busy_seconds()};
}

void Engine::drain() { executor_.run_blocking(drain_task()); }

}  // namespace strata
