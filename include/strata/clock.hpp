// Time as a value that is handed to whoever needs it, so that tests and predictions can run on a
// clock that is arithmetic.
#pragma once

#include <cstdint>

namespace strata {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary origin; never decreases. Thread: any.
  virtual std::int64_t now_ns() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() const override;
};

}  // namespace strata
