#include "plan/schedule.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>

#include "base/check.hpp"
#include "base/rng.hpp"

namespace strata {
namespace {

// Where a gather is called and released, by the index of the call.
struct Interval {
  UnitId unit;
  std::uint32_t called = 0;
  std::uint32_t released = 0;
  std::uint32_t staged = 0;
};

std::vector<Interval> gathers_of(std::span<const ProgramCall> calls) {
  struct Held {
    std::uint32_t holders = 0;
    std::size_t interval = 0;
  };
  std::vector<Interval> intervals;
  std::unordered_map<std::uint32_t, Held> held;
  for (std::uint32_t i = 0; i < calls.size(); ++i) {
    const auto [kind, unit] = calls[i];
    if (kind == CallKind::gather && held[unit.value].holders++ == 0) {
      held[unit.value].interval = intervals.size();
      // Until a release says otherwise.
      intervals.push_back({unit, i, static_cast<std::uint32_t>(calls.size()), 0});
    } else if (kind == CallKind::release && --held[unit.value].holders == 0) {
      intervals[held[unit.value].interval].released = i;
    }
  }
  return intervals;
}

// Stages each gather as early as the slots allow, after the one before it.
void stage(std::vector<Interval>& gathers, std::uint32_t slots, Schedule& schedule) {
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> releases;
  std::unordered_map<std::uint32_t, std::uint32_t> last_release;  // by unit
  std::uint32_t at = 0;
  for (Interval& gather : gathers) {
    if (const auto earlier = last_release.find(gather.unit.value); earlier != last_release.end()) {
      at = std::max(at, earlier->second);
    }
    while (!releases.empty() && (releases.top() <= at || releases.size() >= slots)) {
      at = std::max(at, releases.top());
      releases.pop();
    }
    STRATA_ASSERT(at <= gather.called, "a step held more units than there are slots");
    gather.staged = at;
    releases.push(gather.released);
    last_release[gather.unit.value] = gather.released;
    schedule.most_in_use =
        std::max(schedule.most_in_use, static_cast<std::uint32_t>(releases.size()));
  }
}

// count_after[i] = how many of `moments`, which never fall, are at most i.
std::vector<std::uint32_t> counts_after(const std::vector<std::uint32_t>& moments,
                                        std::size_t calls) {
  std::vector<std::uint32_t> counts(calls);
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < calls; ++i) {
    while (count < moments.size() && moments[count] <= i) ++count;
    counts[i] = count;
  }
  return counts;
}

std::uint64_t hash_of(const Schedule& schedule) {
  std::uint64_t hash = rng::at(0, schedule.slots);
  for (std::size_t i = 0; i < schedule.calls.size(); ++i) {
    const auto [kind, unit] = schedule.calls[i];
    hash = rng::at(hash, (std::uint64_t{unit.value} << 8) + static_cast<std::uint64_t>(kind));
    hash = rng::at(hash, (std::uint64_t{schedule.staged_after[i]} << 32) +
                             schedule.entered_after[i]);
  }
  return hash;
}

}  // namespace

Schedule make_schedule(std::span<const ProgramCall> calls, std::uint32_t slots) {
  Schedule schedule{.calls = {calls.begin(), calls.end()}, .slots = slots};
  std::vector<Interval> gathers = gathers_of(calls);
  stage(gathers, slots, schedule);
  std::vector<std::uint32_t> staged;
  std::vector<std::uint32_t> entered;
  for (std::size_t j = 0; j < gathers.size(); ++j) {
    schedule.gathers.push_back(gathers[j].unit);
    staged.push_back(gathers[j].staged);
    entered.push_back(std::max(gathers[j].staged, j == 0 ? 0 : gathers[j - 1].called));
  }
  schedule.staged_after = counts_after(staged, calls.size());
  schedule.entered_after = counts_after(entered, calls.size());
  schedule.hash = hash_of(schedule);
  return schedule;
}

}  // namespace strata
