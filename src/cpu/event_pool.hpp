// The events of a device whose streams are threads. A slot is reused as soon as its event has
// fired; the generation tells the reuses apart, so handles need no freeing and an old one reads as
// done (Device::record). Slots are never given back: their number is the largest number of events
// that were pending at once.
// Thread: any. Asking about an event that this pool never handed out is an assertion.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "strata/device.hpp"

namespace strata {

class EventPool {
 public:
  // A pending event. Every acquired event must be fired exactly once.
  Event acquire();

  // Marks the event done, wakes its waiters and runs what notify() left, on this thread.
  // `scratch` is empty before and after; it lends its capacity, so that firing never allocates.
  void fire(Event event, std::vector<HostFunction>& scratch);

  bool done(Event event) const;

  // Blocks until the event is done.
  void wait(Event event);

  // Runs `function` on the thread that fires the event, or now if the event is done.
  void notify(Event event, HostFunction function);

  // The number of slots ever made. For tests.
  std::size_t slots() const;

 private:
  struct Slot {
    std::uint64_t generation = 0;
    bool fired = true;
    std::condition_variable changed;
    std::vector<HostFunction> callbacks;
  };

  const Slot& checked(Event event) const;  // holds mutex_
  bool done_locked(Event event) const;     // holds mutex_

  mutable std::mutex mutex_;
  std::deque<Slot> slots_;  // a deque, because waiters stand on a slot while others are added
  std::vector<std::uint32_t> free_;
};

}  // namespace strata
