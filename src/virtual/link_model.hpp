// The arithmetic of a link that carries one transfer at a time, in the order of the calls: each
// takes bytes / rate, and arrives after the latency.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "strata/types.hpp"

namespace strata {

struct LinkPace {
  double bytes_per_second = 0;  // 0: it takes no time but the latency
  std::chrono::nanoseconds latency{0};
};

class LinkModel {
 public:
  explicit LinkModel(LinkPace pace = {}) : pace_(pace) {}

  // When a transfer that is ready at `begin_ns` has arrived.
  std::int64_t reserve(std::int64_t begin_ns, Bytes size) {
    if (pace_.bytes_per_second <= 0) return begin_ns + pace_.latency.count();
    const double seconds = static_cast<double>(size.value) / pace_.bytes_per_second;
    free_ns_ = std::max(free_ns_, begin_ns) + static_cast<std::int64_t>(seconds * 1e9);
    return free_ns_ + pace_.latency.count();
  }

 private:
  LinkPace pace_;
  std::int64_t free_ns_ = 0;
};

}  // namespace strata
