#include "cuda/event_pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "cuda/check.hpp"

namespace strata::cuda {

EventPool::~EventPool() { close(); }

void EventPool::add_stream(cudaStream_t handle) {
  const std::lock_guard lock(mutex_);
  streams_.emplace_back().handle = handle;
  for (Stream& stream : streams_) stream.waited.resize(streams_.size(), 0);
}

EventPool::Stream& EventPool::stream_at(StreamId id) {
  const std::lock_guard lock(mutex_);
  return streams_[id.value];
}

bool EventPool::succeeded(cudaError_t result, std::string_view call) {
  if (result == cudaSuccess) return true;
  failure_.record(error_of(result, call));
  return false;
}

Event EventPool::record(StreamId id) {
  Stream& stream = stream_at(id);
  const std::lock_guard in_order(stream.enqueueing);
  std::unique_lock lock(mutex_);
  succeeded(enter(device_), "cudaSetDevice");
  collect_fired(stream);
  const std::uint32_t index = take_slot();
  Slot& slot = slots_[index];
  lock.unlock();  // nobody else knows this use of the slot
  cudaError_t result = cudaErrorInvalidResourceHandle;
  if (slot.handle != nullptr) result = cudaEventRecord(slot.handle, stream.handle);
  // The device has failed. What cannot be waited for later is waited for now.
  if (result != cudaSuccess) {
    [[maybe_unused]] const cudaError_t known = cudaStreamSynchronize(stream.handle);
  }
  lock.lock();
  slot.fired = slot.handle == nullptr || !succeeded(result, "cudaEventRecord");
  ++slot.generation;
  slot.stream = id;
  slot.position = ++stream.recorded;
  slot.pending = true;
  slot.next = kNone;
  (stream.newest == kNone ? stream.oldest : slots_[stream.newest].next) = index;
  stream.newest = index;
  return {index, slot.generation};
}

// Events of one stream fire in order, so that only the oldest is asked about.
void EventPool::collect_fired(Stream& stream) {
  while (stream.oldest != kNone) {
    const std::uint32_t index = stream.oldest;
    Slot& slot = slots_[index];
    if (!has_fired(slot, slot.generation)) return;
    stream.oldest = slot.next;
    if (stream.oldest == kNone) stream.newest = kNone;
    slot.pending = false;
    if (slot.waiters == 0) put_back(index);
  }
}

void EventPool::put_back(std::uint32_t index) {
  slots_[index].next = free_;
  free_ = index;
}

std::uint32_t EventPool::take_slot() {
  if (free_ != kNone) {
    const std::uint32_t index = free_;
    free_ = slots_[index].next;
    return index;
  }
  Slot& slot = slots_.emplace_back();
  // Blocking: who waits sleeps instead of spinning. Without times, which cost the GPU.
  if (!succeeded(
          cudaEventCreateWithFlags(&slot.handle, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreateWithFlags")) {
    slot.handle = nullptr;
  }
  return static_cast<std::uint32_t>(slots_.size() - 1);
}

EventPool::Slot& EventPool::checked(Event event) {
  STRATA_ASSERT(
      event.recorded() && event.slot < slots_.size() &&
          event.generation <= slots_[event.slot].generation,
      fmt::format("event {} of generation {} was never recorded", event.slot, event.generation));
  return slots_[event.slot];
}

bool EventPool::has_fired(Slot& slot, std::uint64_t generation) {
  if (slot.generation != generation || slot.fired) return true;
  cudaError_t result = enter(device_);
  if (result == cudaSuccess) result = cudaEventQuery(slot.handle);
  if (result == cudaErrorNotReady) {
    // Not a failure, yet the runtime notes it as the thread's last error.
    [[maybe_unused]] const cudaError_t taken = cudaGetLastError();
    return false;
  }
  slot.fired = true;
  succeeded(result, "cudaEventQuery");
  return true;
}

void EventPool::wait(StreamId id, Event event) {
  Stream& stream = stream_at(id);
  const std::lock_guard in_order(stream.enqueueing);
  std::unique_lock lock(mutex_);
  Slot& slot = checked(event);
  const bool recycled = slot.generation != event.generation;
  if (recycled || slot.fired || slot.stream == id) return;
  std::uint64_t& waited = stream.waited[slot.stream.value];
  if (waited >= slot.position) return;
  waited = slot.position;
  ++slot.waiters;  // keeps the slot from being recorded again
  lock.unlock();
  cudaError_t result = enter(device_);
  if (result == cudaSuccess) result = cudaStreamWaitEvent(stream.handle, slot.handle, 0);
  lock.lock();
  succeeded(result, "cudaStreamWaitEvent");
  let_go(event.slot);
}

void EventPool::let_go(std::uint32_t index) {
  Slot& slot = slots_[index];
  if (--slot.waiters == 0 && !slot.pending) put_back(index);
}

bool EventPool::done(Event event) {
  const std::lock_guard lock(mutex_);
  return has_fired(checked(event), event.generation);
}

void EventPool::synchronize(Event event) {
  std::unique_lock lock(mutex_);
  Slot& slot = checked(event);
  if (slot.generation != event.generation || slot.fired) return;
  ++slot.waiters;  // keeps the slot from being recorded again
  lock.unlock();
  cudaError_t result = enter(device_);
  if (result == cudaSuccess) result = cudaEventSynchronize(slot.handle);
  lock.lock();
  succeeded(result, "cudaEventSynchronize");
  slot.fired = true;
  let_go(event.slot);
}

StreamId EventPool::stream_of(Event event) {
  const std::lock_guard lock(mutex_);
  return checked(event).stream;
}

void EventPool::close() {
  const std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) {
    if (slot.handle != nullptr) succeeded(cudaEventDestroy(slot.handle), "cudaEventDestroy");
    slot.handle = nullptr;
    slot.fired = true;
  }
}

}  // namespace strata::cuda
