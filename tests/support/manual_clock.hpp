// A clock that is arithmetic: time passes when the test says so.
// Thread: any.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/check.hpp"
#include "strata/clock.hpp"

namespace strata::test {

class ManualClock final : public Clock {
 public:
  explicit ManualClock(std::int64_t start_ns = 0) : now_ns_(start_ns) {}

  std::int64_t now_ns() const override { return now_ns_.load(); }

  void advance(std::int64_t by_ns) {
    STRATA_ASSERT(by_ns >= 0, "a clock never runs backwards");
    now_ns_.fetch_add(by_ns);
  }

 private:
  std::atomic<std::int64_t> now_ns_;
};

}  // namespace strata::test
