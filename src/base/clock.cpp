#include "strata/clock.hpp"

#include <chrono>

namespace strata {

std::int64_t SteadyClock::now_ns() const {
  const auto since_origin = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_origin).count();
}

}  // namespace strata
