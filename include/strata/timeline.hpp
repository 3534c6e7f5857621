// What a session did when, for chrome://tracing and https://ui.perfetto.dev: a row for each
// resource (rows for what overlaps in it), an entry for each operation, named by what it does and
// the unit. Hand one to SessionOptions::timeline; entries are kept between record(true) and
// record(false), in memory, until write().
//
// Work of device streams is timed by events before and behind it, as the host is told of them.
// Ownership: outlives the session. Thread: any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "strata/types.hpp"

namespace strata {

enum class TimelineRow : std::uint8_t {
  program,  // blocked in a call
  compute,  // from a gather until the end of its lease, on the lease's stream
  collectives,
  host_to_device,
  device_to_host,
  device_updates,
  workers,
  nvme,  // from a request's submission to its answer
};
inline constexpr std::size_t kTimelineRows = 8;
std::string_view name_of(TimelineRow row);

struct TimelineEntry {
  TimelineRow row = TimelineRow::program;
  std::string name;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

class Timeline {
 public:
  // Entries beyond these are counted and dropped.
  static constexpr std::size_t kMostEntries = 1'000'000;

  void record(bool on) { recording_ = on; }
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void add(TimelineEntry entry);

  // Seconds for which at least one entry of each row was under way.
  std::array<double, kTimelineRows> busy_seconds() const;
  std::size_t size() const;

  // As JSON (Trace Event Format). Throws Error(io) that names the file. Blocks.
  void write(const std::string& path, Rank rank = {}) const;

 private:
  std::atomic<bool> recording_ = false;
  mutable std::mutex mutex_;
  std::vector<TimelineEntry> entries_;  // guarded by mutex_
  std::uint64_t dropped_ = 0;           // the same
};

}  // namespace strata
