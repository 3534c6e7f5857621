// The arithmetic of a disk with declared rates, for disks in real time (paced) and in virtual time.
// Requests are served in order of (priority, submission); each occupies the disk for bytes / rate,
// then completes after the request latency. Half-duplex disks serve reads and writes in one line,
// so that a mix takes R/Br + W/Bw; full-duplex ones have a line for each. A flush stops both lines
// for a time that grows with the bytes written since the last one. When a request starts does not
// depend on when start() is called: at the later of its submission and the end of the one before.
//
// Pure. Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "strata/block_io.hpp"

namespace strata {

struct DiskPace {
  double read_bytes_per_second = 2e9;
  double write_bytes_per_second = 1.5e9;
  bool half_duplex = true;
  double request_latency_seconds = 100e-6;
  double flush_seconds = 1e-3;
  double flush_seconds_per_byte = 1.1e-3 / (1 << 20);  // measured on a virtio disk
};

class DiskModel {
 public:
  // Pre (asserted): rates above zero.
  explicit DiskModel(const DiskPace& pace);

  void submit(const IoRequest& request, std::int64_t now_ns);

  struct Service {
    IoRequest request;
    std::int64_t done_ns = 0;  // when its result is there
  };
  // Takes the most urgent request of a line that is free at `now_ns` into service; empty: none.
  std::optional<Service> start(std::int64_t now_ns);
  // When the next request that waits can be taken; empty: none waits.
  std::optional<std::int64_t> next_start_ns() const;
  // Seconds for which the disk was occupied by requests that were taken, latencies left out.
  double occupied_seconds() const { return static_cast<double>(occupied_sum_ns_) * 1e-9; }

 private:
  struct Queued {
    IoRequest request;
    std::uint64_t sequence = 0;
    std::int64_t submitted_ns = 0;
  };
  struct Line {
    std::vector<Queued> queue;  // heap, most urgent in front
    std::int64_t free_at_ns = 0;
  };

  static bool later(const Queued& a, const Queued& b);
  std::int64_t occupied_ns(const IoRequest& request) const;

  const DiskPace pace_;
  std::array<Line, 2> lines_;  // [0] all or reads, [1] writes and flushes
  std::uint64_t next_sequence_ = 0;
  std::int64_t occupied_sum_ns_ = 0;
  Bytes unflushed_;
};

}  // namespace strata
