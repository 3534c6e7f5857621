#include "paced/paced_device.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "strata/clock.hpp"

namespace strata {
namespace {

std::int64_t now_ns() { return SteadyClock().now_ns(); }

void sleep_until_ns(std::int64_t deadline_ns) {
  using Clock = std::chrono::steady_clock;
  std::this_thread::sleep_until(Clock::time_point(std::chrono::nanoseconds(deadline_ns)));
}

std::uint64_t count_elems(const ElementOp& op) {
  return std::visit([](const auto& one) { return one.count_elems; }, op);
}

}  // namespace

Pacer::Pacer(LinkPace host_to_device, LinkPace device_to_host, LinkPace device_to_device,
             double elements_per_second)
    : elements_per_second_(elements_per_second),
      links_{LinkModel(host_to_device), LinkModel(device_to_host), LinkModel(device_to_device)} {}

void Pacer::add_stream() {
  const std::lock_guard lock(mutex_);
  streams_.emplace_back();
}

void Pacer::declare(StreamId stream, std::chrono::nanoseconds duration) {
  find(stream).declared_ns = duration.count();
}

void Pacer::idle(StreamId stream) { find(stream).idle = true; }

void Pacer::before(StreamId id, const StreamWork& work) {
  Stream& stream = find(id);
  stream.real_begin_ns = now_ns();
  stream.declared_ns = -1;
  if (std::exchange(stream.idle, false)) {
    stream.ready_ns = std::max(stream.ready_ns, stream.real_begin_ns);
  }
  if (const auto* record = std::get_if<RecordWork>(&work)) stamp(record->event, stream.ready_ns);
}

void Pacer::after(StreamId id, const StreamWork& work) {
  Stream& stream = find(id);
  if (const auto* wait = std::get_if<WaitWork>(&work)) {
    stream.ready_ns = std::max(stream.ready_ns, fired_ns(wait->event));
    return;
  }
  stream.ready_ns = end_of(stream, work);
  sleep_until_ns(stream.ready_ns);
}

Pacer::Stream& Pacer::find(StreamId stream) {
  const std::lock_guard lock(mutex_);
  return streams_.at(stream.value);
}

// When `work`, which has just run, counts as ended.
std::int64_t Pacer::end_of(Stream& stream, const StreamWork& work) {
  const std::int64_t begin = stream.ready_ns;
  const std::int64_t ran = begin + now_ns() - stream.real_begin_ns;
  if (const auto* copy = std::get_if<CopyWork>(&work)) {
    return std::max(ran, reserve(copy->kind, begin, copy->size));
  }
  if (const auto* zero = std::get_if<ZeroWork>(&work)) {
    return std::max(ran, reserve(CopyKind::device_to_device, begin, zero->size));
  }
  if (const auto* op = std::get_if<ElementOp>(&work)) {
    if (elements_per_second_ <= 0) return ran;
    const double seconds = static_cast<double>(count_elems(*op)) / elements_per_second_;
    return std::max(ran, begin + static_cast<std::int64_t>(seconds * 1e9));
  }
  if (stream.declared_ns >= 0) return std::max(ran, begin + stream.declared_ns);
  // It may have waited for the world outside, whose time is real.
  return now_ns();
}

std::int64_t Pacer::reserve(CopyKind kind, std::int64_t begin_ns, Bytes size) {
  const std::lock_guard lock(mutex_);
  return links_[static_cast<std::size_t>(kind)].reserve(begin_ns, size);
}

void Pacer::stamp(Event event, std::int64_t fired) {
  const std::lock_guard lock(mutex_);
  if (event.slot >= stamps_.size()) stamps_.resize(event.slot + 1);
  stamps_[event.slot] = {event.generation, fired};
}

std::int64_t Pacer::fired_ns(Event event) {
  const std::lock_guard lock(mutex_);
  const Stamp& newest = stamps_.at(event.slot);
  // The slot was reused before this wait came to look: it fired at some time before now.
  return newest.generation == event.generation ? newest.fired_ns : now_ns();
}

PacedDevice::PacedDevice(Options options)
    : pacer_(options.host_to_device, options.device_to_host, options.device_to_device,
             options.elements_per_second),
      inner_({.arena = options.arena, .name = std::move(options.name), .hooks = &pacer_}) {}

void PacedDevice::launch_for(StreamId stream, std::chrono::nanoseconds duration,
                             HostFunction function, std::span<const Access> accesses) {
  const auto run = [this, stream, duration, function = std::move(function)] {
    pacer_.declare(stream, duration);
    if (function) function();
  };
  inner_.launch(stream, run, accesses);
}

StreamId PacedDevice::create_stream(std::string_view name) {
  pacer_.add_stream();
  return inner_.create_stream(name);
}

void PacedDevice::launch(StreamId stream, HostFunction function, std::span<const Access> accesses) {
  inner_.launch(stream, std::move(function), accesses);
}

void PacedDevice::notify(Event event, HostFunction function) {
  inner_.notify(event, std::move(function));
}

}  // namespace strata
