#include "support/adversarial_device.hpp"

#include <utility>

#include "base/check.hpp"
#include "ports/element_accesses.hpp"

namespace strata::test {
namespace {

std::string_view kind_of(const ElementOp& op) {
  if (std::holds_alternative<AccumulateOp>(op)) return "accumulate";
  if (std::holds_alternative<GradientStatsOp>(op)) return "gradient_stats";
  if (std::holds_alternative<ConvertOp>(op)) return "convert";
  return "adamw";
}

std::string_view name_of(CopyKind kind) {
  switch (kind) {
    case CopyKind::host_to_device: return "h2d copy";
    case CopyKind::device_to_host: return "d2h copy";
    case CopyKind::device_to_device: return "d2d copy";
  }
  return "copy";
}

}  // namespace

AdversarialDevice::AdversarialDevice(Options options)
    : abort_on_violation_(options.abort_on_violation),
      gate_(options.policy, options.seed, options.patience),
      inner_({.arena = options.arena, .name = std::move(options.name), .hooks = &gate_}),
      checker_(inner_.arena(), options.check_leases,
               [this](std::string message) { add_violation(std::move(message)); }) {}

AdversarialDevice::~AdversarialDevice() { close(); }

std::vector<std::string> AdversarialDevice::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

void AdversarialDevice::host_reads(const void* data, Bytes size) {
  const std::lock_guard lock(mutex_);
  checker_.host_access("read", {data, size, false});
}

void AdversarialDevice::host_writes(void* data, Bytes size) {
  const std::lock_guard lock(mutex_);
  checker_.host_access("write", {data, size, true});
}

void AdversarialDevice::host_gives_up(std::string_view what, void* data, Bytes size) {
  const std::lock_guard lock(mutex_);
  checker_.host_access(what, {data, size, true});
}

bool AdversarialDevice::is_known(Event event) const {
  const std::lock_guard lock(mutex_);
  return checker_.is_known(event);
}

bool AdversarialDevice::is_known_idle(StreamId stream) const {
  const std::lock_guard lock(mutex_);
  return checker_.is_known_idle(stream);
}

StreamId AdversarialDevice::create_stream(std::string_view name) {
  const std::lock_guard lock(mutex_);
  checker_.add_stream(name);
  gate_.add_stream();
  return inner_.create_stream(name);
}

void AdversarialDevice::copy(StreamId stream, void* dst, const void* src, Bytes size,
                             CopyKind kind) {
  const Access accesses[] = {{src, size, false}, {dst, size, true}};
  const std::lock_guard lock(mutex_);
  enqueue_checked(stream, name_of(kind), accesses);
  inner_.copy(stream, dst, src, size, kind);
}

void AdversarialDevice::zero(StreamId stream, void* dst, Bytes size) {
  const Access accesses[] = {{dst, size, true}};
  const std::lock_guard lock(mutex_);
  enqueue_checked(stream, "zero", accesses);
  inner_.zero(stream, dst, size);
}

void AdversarialDevice::launch(StreamId stream, HostFunction function,
                               std::span<const Access> accesses) {
  launch_as("launch", stream, std::move(function), accesses);
}

void AdversarialDevice::launch_as(std::string_view kind, StreamId stream, HostFunction function,
                                  std::span<const Access> accesses) {
  const std::lock_guard lock(mutex_);
  enqueue_checked(stream, kind, accesses);
  inner_.launch(stream, std::move(function), accesses);
}

void AdversarialDevice::call_host(StreamId stream, HostFunction function) {
  const std::lock_guard lock(mutex_);
  auto call = [this, before = checker_.point(stream), function = std::move(function)] {
    {
      const std::lock_guard lock_in_call(mutex_);
      checker_.host_knows(before);
    }
    function();
  };
  enqueue_checked(stream, "host function", {});
  inner_.launch(stream, std::move(call));
  gate_.demand(stream);
}

void AdversarialDevice::element_op(StreamId stream, const ElementOp& op) {
  std::vector<Access> accesses;
  for_each_access(op, [&](const Access& access) { accesses.push_back(access); });
  const std::lock_guard lock(mutex_);
  enqueue_checked(stream, kind_of(op), accesses);
  inner_.element_op(stream, op);
}

Event AdversarialDevice::record(StreamId stream) {
  const std::lock_guard lock(mutex_);
  gate_.enqueued(stream);
  const Event event = inner_.record(stream);
  gate_.recorded(stream, event);
  checker_.record(stream, event);
  return event;
}

void AdversarialDevice::wait(StreamId stream, Event event) {
  const std::lock_guard lock(mutex_);
  gate_.enqueued(stream);
  inner_.wait(stream, event);
  checker_.wait(stream, event);
}

bool AdversarialDevice::done(Event event) const {
  if (!inner_.done(event)) {
    gate_.polled(event);
    return false;
  }
  host_knows(event);
  return true;
}

void AdversarialDevice::synchronize(Event event) {
  gate_.demand(event);
  inner_.synchronize(event);
  host_knows(event);
}

void AdversarialDevice::notify(Event event, HostFunction function) {
  gate_.demand(event);
  inner_.notify(event, [this, event, function = std::move(function)] {
    host_knows(event);
    function();
  });
}

void AdversarialDevice::register_host(std::span<std::byte> memory) { inner_.register_host(memory); }

void AdversarialDevice::unregister_host(std::span<std::byte> memory) {
  host_writes(memory.data(), Bytes{memory.size()});
  inner_.unregister_host(memory);
}

void AdversarialDevice::note_lease(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  checker_.lease(memory);
}

void AdversarialDevice::note_release(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  checker_.release(memory);
}

void AdversarialDevice::close() {
  gate_.open();
  inner_.close();
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;
  checker_.finish();
}

void AdversarialDevice::enqueue_checked(StreamId stream, std::string_view kind,
                                        std::span<const Access> accesses) {
  checker_.op(stream, kind, accesses);
  gate_.enqueued(stream);
}

void AdversarialDevice::host_knows(Event event) const {
  const std::lock_guard lock(mutex_);
  checker_.host_knows(event);
}

void AdversarialDevice::add_violation(std::string message) {
  STRATA_ASSERT(!abort_on_violation_, message);
  violations_.push_back(std::move(message));
}

}  // namespace strata::test
