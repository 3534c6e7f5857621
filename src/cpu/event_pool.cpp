#include "cpu/event_pool.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/check.hpp"

namespace strata {

Event EventPool::acquire() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  ++slot.generation;
  slot.fired = false;
  return Event{index, slot.generation};
}

void EventPool::fire(Event event, std::vector<HostFunction>& scratch) {
  {
    const std::lock_guard lock(mutex_);
    STRATA_ASSERT(!done_locked(event), "an event fires once");
    Slot& slot = slots_[event.slot];
    slot.fired = true;
    slot.callbacks.swap(scratch);
    free_.push_back(event.slot);
    slot.changed.notify_all();
  }
  for (const HostFunction& callback : scratch) callback();
  scratch.clear();
}

bool EventPool::done(Event event) const {
  const std::lock_guard lock(mutex_);
  return done_locked(event);
}

void EventPool::wait(Event event) {
  std::unique_lock lock(mutex_);
  checked(event);
  slots_[event.slot].changed.wait(lock, [&] { return done_locked(event); });
}

void EventPool::notify(Event event, HostFunction function) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_locked(event)) {
      slots_[event.slot].callbacks.push_back(std::move(function));
      return;
    }
  }
  function();
}

std::size_t EventPool::slots() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

const EventPool::Slot& EventPool::checked(Event event) const {
  STRATA_ASSERT(event.recorded() && event.slot < slots_.size() &&
                    event.generation <= slots_[event.slot].generation,
                fmt::format("event (slot {}, generation {}) was never recorded on this device",
                            event.slot, event.generation));
  return slots_[event.slot];
}

bool EventPool::done_locked(Event event) const {
  const Slot& slot = checked(event);
  return slot.fired || event.generation < slot.generation;
}

}  // namespace strata
