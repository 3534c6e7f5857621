// Wakes a thread that sleeps in poll(2): an eventfd (eventfd(2)) that is raised or not.
// Thread: any.
#pragma once

#include "base/descriptor.hpp"

namespace strata {

class WakeEvent {
 public:
  // Throws Error(io) when the process has no descriptor left.
  WakeEvent();

  void raise() noexcept;
  void clear() noexcept;
  // Readable while raised.
  int descriptor() const { return descriptor_.get(); }
  // Blocks until it is raised.
  void wait() noexcept;

 private:
  Descriptor descriptor_;
};

}  // namespace strata
