#include "strata/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "strata/error.hpp"

namespace strata {
namespace {

using Json = nlohmann::ordered_json;

// Viewers draw entries of one thread that overlap without being nested wrongly, so each row has as
// many threads as overlap. `ends`: of the row's threads so far.
std::size_t lane_for(std::vector<std::int64_t>& ends, const TimelineEntry& entry) {
  const auto free = std::ranges::find_if(ends, [&](auto end) { return end <= entry.begin_ns; });
  const auto lane = static_cast<std::size_t>(free - ends.begin());
  if (free == ends.end()) ends.push_back(0);
  ends[lane] = entry.end_ns;
  return lane;
}

double in_us(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

}  // namespace

std::string_view name_of(TimelineRow row) {
  switch (row) {
    case TimelineRow::program: return "program waits";
    case TimelineRow::compute: return "compute";
    case TimelineRow::collectives: return "collectives";
    case TimelineRow::host_to_device: return "host to device";
    case TimelineRow::device_to_host: return "device to host";
    case TimelineRow::device_updates: return "device updates";
    case TimelineRow::workers: return "workers";
    case TimelineRow::nvme: return "nvme";
  }
  return "?";
}

void Timeline::add(TimelineEntry entry) {
  const std::scoped_lock lock(mutex_);
  if (entries_.size() == kMostEntries) {
    ++dropped_;
  } else {
    entries_.push_back(std::move(entry));
  }
}

std::size_t Timeline::size() const {
  const std::scoped_lock lock(mutex_);
  return entries_.size();
}

std::array<double, kTimelineRows> Timeline::busy_seconds() const {
  std::array<std::vector<std::pair<std::int64_t, std::int64_t>>, kTimelineRows> spans;
  {
    const std::scoped_lock lock(mutex_);
    for (const TimelineEntry& entry : entries_) {
      spans[static_cast<std::size_t>(entry.row)].emplace_back(entry.begin_ns, entry.end_ns);
    }
  }
  std::array<double, kTimelineRows> busy{};
  for (std::size_t row = 0; row < kTimelineRows; ++row) {
    std::ranges::sort(spans[row]);
    std::int64_t until_ns = 0;
    for (const auto& [begin, end] : spans[row]) {
      if (end <= until_ns) continue;
      busy[row] += static_cast<double>(end - std::max(begin, until_ns)) * 1e-9;
      until_ns = end;
    }
  }
  return busy;
}

void Timeline::write(const std::string& path, Rank rank) const {
  std::vector<TimelineEntry> entries;
  std::uint64_t dropped = 0;
  {
    const std::scoped_lock lock(mutex_);
    entries = entries_;
    dropped = dropped_;
  }
  std::ranges::stable_sort(entries, {}, &TimelineEntry::begin_ns);
  const std::int64_t origin_ns = entries.empty() ? 0 : entries.front().begin_ns;
  std::ofstream file(path, std::ios::trunc);
  bool first = true;
  const auto put = [&](const Json& event) {
    file << (std::exchange(first, false) ? "" : ",\n")
         << event.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  file << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  put({{"ph", "M"},
       {"pid", rank.value},
       {"name", "process_name"},
       {"args", {{"name", fmt::format("rank {}", rank.value)}}}});
  std::array<std::vector<std::int64_t>, kTimelineRows> lanes;
  for (const TimelineEntry& entry : entries) {
    const auto row = static_cast<std::size_t>(entry.row);
    const std::size_t known = lanes[row].size();
    const std::size_t lane = lane_for(lanes[row], entry);
    const std::size_t thread = row * 100 + lane;
    if (lane == known) {
      const std::string name = lane == 0 ? std::string(name_of(entry.row))
                                         : fmt::format("{} ({})", name_of(entry.row), lane + 1);
      put({{"ph", "M"},
           {"pid", rank.value},
           {"tid", thread},
           {"name", "thread_name"},
           {"args", {{"name", name}}}});
      put({{"ph", "M"},
           {"pid", rank.value},
           {"tid", thread},
           {"name", "thread_sort_index"},
           {"args", {{"sort_index", thread}}}});
    }
    put({{"ph", "X"},
         {"pid", rank.value},
         {"tid", thread},
         {"ts", in_us(entry.begin_ns - origin_ns)},
         {"dur", in_us(entry.end_ns - entry.begin_ns)},
         {"name", entry.name}});
  }
  file << fmt::format("\n], \"otherData\": {{\"dropped_entries\": {}}}}}\n", dropped);
  file.close();
  if (!file) {
    throw Error(ErrorCode::io, "cannot write the timeline", {.errnum = errno, .path = path});
  }
}

}  // namespace strata
