#include "plan/schedule.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>

#include "base/rng.hpp"

namespace strata {
namespace {

// A gather by the indices of calls.
struct Interval {
  UnitId unit;
  std::uint32_t called = 0;
  std::uint32_t free_from = 0;  // the first call after its release
  std::uint32_t staged = 0;
};

struct Gathers {
  std::vector<Interval> of_step;
  std::vector<std::uint32_t> free_from_of_held;
};

Gathers gathers_of(const RecordedStep& step) {
  struct Held {
    std::uint32_t holders = 0;
    std::uint32_t* free_from = nullptr;
  };
  Gathers gathers;
  gathers.of_step.reserve(step.calls.size());
  gathers.free_from_of_held.reserve(step.held.size());
  std::unordered_map<std::uint32_t, Held> units;
  const auto end = static_cast<std::uint32_t>(step.calls.size());
  for (const UnitId unit : step.held) {
    Held& held = units[unit.value];
    if (held.holders++ > 0) continue;
    held.free_from = &gathers.free_from_of_held.emplace_back(end);
  }
  auto release = step.releases.begin();
  for (std::uint32_t i = 0; i < end; ++i) {
    const auto [kind, unit] = step.calls[i];
    Held& held = units[unit.value];
    if (kind == CallKind::gather && held.holders++ == 0) {
      held.free_from = &gathers.of_step.emplace_back(Interval{unit, i, end, 0}).free_from;
    }
    for (; release != step.releases.end() && release->after_call <= i; ++release) {
      Held& released = units[release->unit.value];
      if (--released.holders == 0) *released.free_from = i + 1;
    }
  }
  return gathers;
}

// Stages each gather as early as the slots allow, after the one before it.
void stage(Gathers& gathers, GatherSlots slots) {
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> in_use;
  for (const std::uint32_t free_from : gathers.free_from_of_held) in_use.push(free_from);
  std::unordered_map<std::uint32_t, std::uint32_t> last_release;  // by unit
  std::uint32_t at = 0;
  std::uint32_t called_before = 0;
  for (Interval& gather : gathers.of_step) {
    std::uint32_t& free_from = last_release[gather.unit.value];
    at = std::max(at, free_from);
    while (!in_use.empty() && (in_use.top() <= at || in_use.size() >= slots.total())) {
      at = std::max(at, in_use.top());
      in_use.pop();
    }
    // It cannot be entered before it is staged, and a rank that has no slot yet waits for one.
    gather.staged = std::min(at, slots.ahead == 0 ? gather.called : called_before);
    called_before = gather.called;
    free_from = gather.free_from;
    in_use.push(gather.free_from);
  }
}

// counts[i] = how many of `moments`, which never fall, are at most i.
std::vector<std::uint32_t> counts_at(const std::vector<std::uint32_t>& moments, std::size_t calls) {
  std::vector<std::uint32_t> counts(calls);
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < calls; ++i) {
    while (count < moments.size() && moments[count] <= i) ++count;
    counts[i] = count;
  }
  return counts;
}

std::uint32_t most_in_use(const Gathers& gathers, const std::vector<std::uint32_t>& staged_at) {
  std::vector<std::uint32_t> freed = gathers.free_from_of_held;
  for (const Interval& gather : gathers.of_step) freed.push_back(gather.free_from);
  std::ranges::sort(freed);
  const std::vector<std::uint32_t> freed_at = counts_at(freed, staged_at.size());
  const auto held = static_cast<std::uint32_t>(gathers.free_from_of_held.size());
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < staged_at.size(); ++i) {
    most = std::max(most, held + staged_at[i] - freed_at[i]);
  }
  return most;
}

std::uint64_t hash_of(const Schedule& schedule) {
  std::uint64_t hash = rng::at(schedule.held.size(), schedule.gathers.size());
  for (const UnitId unit : schedule.held) hash = rng::at(hash, unit.value);
  for (const UnitId unit : schedule.gathers) hash = rng::at(hash, unit.value);
  for (std::size_t i = 0; i < schedule.calls.size(); ++i) {
    const auto [kind, unit] = schedule.calls[i];
    hash = rng::at(hash, (std::uint64_t{unit.value} << 8) + static_cast<std::uint64_t>(kind));
    hash = rng::at(hash, (std::uint64_t{schedule.called_at[i]} << 32) + schedule.entered_at[i]);
  }
  return std::max<std::uint64_t>(hash, 1);
}

}  // namespace

Schedule make_schedule(const RecordedStep& step, GatherSlots slots) {
  Schedule schedule{.held = step.held, .calls = step.calls};
  Gathers gathers = gathers_of(step);
  stage(gathers, slots);
  std::vector<std::uint32_t> called;
  std::vector<std::uint32_t> staged;
  std::vector<std::uint32_t> entered;
  for (std::size_t j = 0; j < gathers.of_step.size(); ++j) {
    const Interval& gather = gathers.of_step[j];
    const std::uint32_t before = j == 0 ? 0 : gathers.of_step[j - 1].called;
    schedule.gathers.push_back(gather.unit);
    called.push_back(gather.called);
    staged.push_back(gather.staged);
    entered.push_back(slots.ahead == 0 ? gather.called : before);
  }
  schedule.called_at = counts_at(called, step.calls.size());
  schedule.staged_at = counts_at(staged, step.calls.size());
  schedule.entered_at = counts_at(entered, step.calls.size());
  schedule.most_in_use = most_in_use(gathers, schedule.staged_at);
  schedule.hash = hash_of(schedule);
  return schedule;
}

}  // namespace strata
