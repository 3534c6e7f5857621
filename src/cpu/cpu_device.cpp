#include "cpu/cpu_device.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/check.hpp"
#include "ports/element_accesses.hpp"

namespace strata {

CpuDevice::CpuDevice(Options options)
    : name_(std::move(options.name)), hooks_(options.hooks), arena_(options.arena) {}

CpuDevice::~CpuDevice() { close(); }

StreamId CpuDevice::create_stream(std::string_view name) {
  const std::lock_guard lock(mutex_);
  STRATA_ASSERT(!closed_, fmt::format("stream '{}' created on closed device '{}'", name, name_));
  const StreamId id{static_cast<std::uint32_t>(streams_.size())};
  streams_.push_back(std::make_unique<StreamThread>(id, name, events_, hooks_));
  return id;
}

void CpuDevice::copy(StreamId stream, void* dst, const void* src, Bytes size, CopyKind kind) {
  if (kind != CopyKind::host_to_device) require_in_arena(src, size, "source of a copy");
  if (kind != CopyKind::device_to_host) require_in_arena(dst, size, "destination of a copy");
  find(stream).push(CopyWork{dst, src, size, kind});
}

void CpuDevice::zero(StreamId stream, void* dst, Bytes size) {
  require_in_arena(dst, size, "destination of zero()");
  find(stream).push(ZeroWork{dst, size});
}

void CpuDevice::launch(StreamId stream, HostFunction function, std::span<const Access>) {
  STRATA_ASSERT(function != nullptr, "launch of an empty function");
  find(stream).push(std::move(function));
}

void CpuDevice::element_op(StreamId stream, const ElementOp& op) {
  for_each_access(op, [&](const Access& access) {
    require_in_arena(access.data, access.size, "operand of an element op");
  });
  find(stream).push(op);
}

Event CpuDevice::record(StreamId stream) {
  const Event event = events_.acquire();
  find(stream).push(RecordWork{event});
  return event;
}

void CpuDevice::wait(StreamId stream, Event event) {
  // Asserts here, where the caller's stack shows the mistake, and not on the stream's thread.
  static_cast<void>(events_.done(event));
  find(stream).push(WaitWork{event});
}

void CpuDevice::notify(Event event, HostFunction function) {
  events_.notify(event, std::move(function));
}

void CpuDevice::register_host(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  registered_.add(memory);
}

void CpuDevice::unregister_host(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  registered_.remove(memory);
}

void CpuDevice::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& stream : streams_) stream->begin_close();
  for (const auto& stream : streams_) stream->join();
}

StreamThread& CpuDevice::find(StreamId stream) const {
  const std::lock_guard lock(mutex_);
  STRATA_ASSERT(stream.value < streams_.size(),
                fmt::format("device '{}' has no stream {}", name_, stream.value));
  return *streams_[stream.value];
}

void CpuDevice::require_in_arena(const void* data, Bytes size, std::string_view what) const {
  strata::require_in_arena(arena_.bytes(), name_, data, size, what);
}

}  // namespace strata
