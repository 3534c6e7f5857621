// Patterns: named sequences of program calls that recur, as "train" and "eval" do. The first step
// of a pattern records its calls and makes its schedule; later steps follow it call by call. A step
// that makes another call deviates: from there to its end nothing is brought forward. The next
// step of the pattern follows the schedule again, and two steps in a row that deviate in the same
// way become the record. Steps with another number of micro-batches are another pattern.
//
// Pure bookkeeping. Thread: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/program_call.hpp"
#include "plan/schedule.hpp"

namespace strata {

// Gathers to bring forward, in the order of their calls.
struct LookAhead {
  std::span<const UnitId> stage;
  std::span<const UnitId> enter;

  bool empty() const { return stage.empty() && enter.empty(); }
};

struct ScheduleCounters {
  std::uint64_t steps = 0;       // that ended
  std::uint64_t followed = 0;    // from the first call to the last
  std::uint64_t deviations = 0;  // steps that began to follow a schedule and left it
};

class PatternBook {
 public:
  // Beyond these it forgets all: a name for each step is no pattern.
  static constexpr std::size_t kMostPatterns = 256;

  explicit PatternBook(GatherSlots slots = {}) : slots_(slots) {}

  // Begins a step. `held`: the units of leases that are older, one entry for each lease. The hash
  // of the schedule that the step would follow; 0: none.
  std::uint64_t begin(const std::string& name, std::uint32_t micro_batches,
                      std::span<const UnitId> held);
  // Whether the step follows that schedule: all ranks have the same. Not without begin().
  void follow(bool agreed);
  bool follows() const { return following_; }

  // Makes the next call of the step; `held`: the unit of a gather is held. True when the step
  // leaves its schedule here.
  bool record(ProgramCall call, bool held = false);
  // Whether the gather that was called last shares what is held. Pre: follows().
  bool shares() const;
  void record_release(UnitId unit);
  // What the call just made brings forward, without what it calls itself; valid until the next step
  // ends.
  LookAhead look_ahead();

  // A call of this step failed: the step follows nothing from here and is not kept.
  void spoil();
  // Ends the step; true when it made exactly the recorded calls.
  bool end();
  // Ends the step without keeping it.
  void abandon();

  const Schedule* schedule(const std::string& name, std::uint32_t micro_batches) const;
  const ScheduleCounters& counters() const { return counters_; }

 private:
  struct Entry {
    std::optional<Schedule> schedule;
    std::vector<UnitId> deviation_held;  // of the step before, when that deviated
    std::vector<ProgramCall> deviation;
  };

  bool repeats(const Schedule& schedule) const;

  GatherSlots slots_;
  std::map<std::pair<std::string, std::uint32_t>, Entry> book_;
  Entry* current_ = nullptr;
  RecordedStep step_;
  bool spoiled_ = false;
  bool following_ = false;
  bool followed_ = false;  // at the begin of the step
  std::uint32_t staged_ = 0;
  std::uint32_t entered_ = 0;
  ScheduleCounters counters_;
};

}  // namespace strata
