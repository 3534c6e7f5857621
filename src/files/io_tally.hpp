// Keeps the IoCounters of a BlockIo. Not synchronised: guard it with the adapter's mutex.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "strata/block_io.hpp"

namespace strata::files {

class IoTally {
 public:
  void submitted(std::size_t count, std::int64_t now_ns) {
    if (in_flight_ == 0 && count > 0) busy_since_ns_ = now_ns;
    in_flight_ += count;
  }

  void completed(IoOp op, std::int64_t result, std::int64_t now_ns) {
    STRATA_ASSERT(in_flight_ > 0, "a request completed twice");
    if (--in_flight_ == 0) busy_ns_ += now_ns - busy_since_ns_;
    if (result < 0) return;
    const Bytes moved{static_cast<std::uint64_t>(result)};
    if (op == IoOp::read) {
      counters_.read += moved;
      ++counters_.reads;
    } else if (op == IoOp::write) {
      counters_.written += moved;
      ++counters_.writes;
    }
  }

  std::size_t in_flight() const { return in_flight_; }

  IoCounters counters(std::int64_t now_ns) const {
    IoCounters counters = counters_;
    const std::int64_t running_ns = in_flight_ > 0 ? now_ns - busy_since_ns_ : 0;
    counters.busy_seconds = static_cast<double>(busy_ns_ + running_ns) * 1e-9;
    return counters;
  }

 private:
  IoCounters counters_;
  std::size_t in_flight_ = 0;
  std::int64_t busy_since_ns_ = 0;
  std::int64_t busy_ns_ = 0;
};

}  // namespace strata::files
