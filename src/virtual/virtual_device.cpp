#include "virtual/virtual_device.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/check.hpp"

namespace strata {

VirtualDevice::VirtualDevice(VirtualMachine& machine, const Options& options)
    : machine_(machine),
      elements_per_second_(options.elements_per_second),
      links_{LinkModel(options.host_to_device), LinkModel(options.device_to_host),
             LinkModel(options.device_to_device)} {
  if (options.arena == Bytes{}) return;
  void* address = ::mmap(nullptr, options.arena.value, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorCode::device,
                fmt::format("no addresses for a device of {} bytes", options.arena.value),
                {.errnum = errno});
  }
  arena_ = {static_cast<std::byte*>(address), options.arena.value};
}

VirtualDevice::~VirtualDevice() {
  if (!arena_.empty()) ::munmap(arena_.data(), arena_.size());
}

StreamId VirtualDevice::create_stream(std::string_view /*name*/) {
  streams_.emplace_back();
  return StreamId{static_cast<std::uint32_t>(streams_.size() - 1)};
}

void VirtualDevice::copy(StreamId stream, void*, const void*, Bytes size, CopyKind kind) {
  push(stream, Transfer{kind, size});
}

void VirtualDevice::zero(StreamId stream, void*, Bytes size) {
  push(stream, Transfer{CopyKind::device_to_device, size});
}

void VirtualDevice::launch(StreamId, HostFunction, std::span<const Access>) {}

void VirtualDevice::launch_for(StreamId stream, std::chrono::nanoseconds duration) {
  push(stream, Timed{duration.count()});
}

void VirtualDevice::element_op(StreamId stream, const ElementOp& op) {
  if (elements_per_second_ <= 0) return;
  const auto elems = std::visit([](const auto& one) { return one.count_elems; }, op);
  const double seconds = static_cast<double>(elems) / elements_per_second_;
  push(stream, Timed{static_cast<std::int64_t>(seconds * 1e9)});
}

Event VirtualDevice::record(StreamId stream) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].fired = false;
  const Event event{slot, ++slots_[slot].generation};
  push(stream, Record{event});
  return event;
}

void VirtualDevice::wait(StreamId stream, Event event) {
  STRATA_ASSERT(event.recorded(), "a wait for an event that was never recorded");
  push(stream, Wait{event});
}

bool VirtualDevice::done(Event event) const {
  STRATA_ASSERT(event.recorded() && event.slot < slots_.size(), "an event that was never recorded");
  const Slot& slot = slots_[event.slot];
  return slot.generation != event.generation || slot.fired;
}

void VirtualDevice::synchronize(Event event) {
  machine_.run_until([&] { return done(event); });
}

void VirtualDevice::notify(Event event, HostFunction function) {
  if (done(event)) {
    function();
  } else {
    slots_[event.slot].callbacks.push_back(std::move(function));
  }
}

double VirtualDevice::busy_seconds(StreamId stream) const {
  return static_cast<double>(streams_.at(stream.value).busy_ns) * 1e-9;
}

void VirtualDevice::close() {
  for (const Stream& stream : streams_) {
    machine_.run_until([&] { return stream.queue.empty() && !stream.stopped; });
  }
}

void VirtualDevice::push(StreamId stream, const Work& work) {
  streams_.at(stream.value).queue.push_back(work);
  if (streams_[stream.value].stopped) return;
  able_.push_back(stream.value);
  go_on();
}

void VirtualDevice::go_on() {
  if (std::exchange(going_on_, true)) return;
  while (!able_.empty()) {
    const std::uint32_t stream = able_.back();
    able_.pop_back();
    if (!streams_[stream].stopped) advance(stream);
  }
  going_on_ = false;
}

// Until the stream is empty, or work of it takes time, or it waits for an event.
void VirtualDevice::advance(std::uint32_t id) {
  Stream& stream = streams_[id];
  while (!stream.queue.empty()) {
    const Work work = stream.queue.front();
    if (const auto* wait = std::get_if<Wait>(&work)) {
      if (!done(wait->event)) {
        stream.stopped = true;
        slots_[wait->event.slot].streams.push_back(id);
        return;
      }
      stream.queue.pop_front();
      continue;
    }
    stream.queue.pop_front();
    if (const auto* record = std::get_if<Record>(&work)) {
      fire(record->event);
      continue;
    }
    const std::int64_t now = machine_.now_ns();
    const auto* transfer = std::get_if<Transfer>(&work);
    const std::int64_t end =
        transfer != nullptr ? end_of(*transfer) : end_of(std::get<Timed>(work));
    if (end <= now) continue;
    stream.busy_ns += end - now;
    stream.stopped = true;
    machine_.call_at(end, [this, id] {
      streams_[id].stopped = false;
      able_.push_back(id);
      go_on();
    });
    return;
  }
}

void VirtualDevice::fire(Event event) {
  Slot& slot = slots_[event.slot];
  slot.fired = true;
  for (const std::uint32_t stream : slot.streams) {
    streams_[stream].stopped = false;
    able_.push_back(stream);
  }
  slot.streams.clear();
  const std::vector<HostFunction> callbacks = std::exchange(slot.callbacks, {});
  free_slots_.push_back(event.slot);
  for (const HostFunction& function : callbacks) function();
}

std::int64_t VirtualDevice::end_of(const Transfer& transfer) {
  return links_[static_cast<std::size_t>(transfer.kind)].reserve(machine_.now_ns(), transfer.size);
}

std::int64_t VirtualDevice::end_of(const Timed& timed) {
  return machine_.now_ns() + timed.duration_ns;
}

}  // namespace strata
