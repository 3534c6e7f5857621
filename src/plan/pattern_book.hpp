// Patterns: named sequences of program calls that recur, as "train" and "eval" do. The first step
// of a pattern records its calls and makes its schedule; later steps follow it call by call. A step
// that makes another call deviates: from there to its end nothing is brought forward. The next
// step of the pattern follows the schedule again, and two steps in a row that deviate in the same
// way become the record.
//
// Pure bookkeeping. Thread: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
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
  // `gather_slots`: see make_schedule().
  explicit PatternBook(std::uint32_t gather_slots = 1) : slots_(gather_slots) {}

  // Begins a step of this pattern. The hash of the schedule that it would follow; 0: none yet, or
  // not `whole`: leases of before are still held, so that the calls are not all there is.
  std::uint64_t begin(const std::string& name, bool whole = true);
  // Whether the step follows that schedule: all ranks have the same. Not without begin().
  void follow(bool agreed);
  bool follows() const { return following_; }

  // Makes the next call of the step. True when the step leaves its schedule here.
  bool record(ProgramCall call);
  // What the call just made brings forward; valid until the step ends.
  LookAhead look_ahead();

  // A call of this step failed: the step follows nothing from here and is not kept.
  void spoil();
  // Ends the step; true when it made exactly the recorded calls.
  bool end();
  // Ends the step without keeping it.
  void abandon();

  std::uint64_t calls_so_far() const { return calls_.size(); }
  const Schedule* schedule(const std::string& name) const;
  const ScheduleCounters& counters() const { return counters_; }

 private:
  struct Entry {
    std::optional<Schedule> schedule;
    std::vector<ProgramCall> deviation;  // of the step before, when that deviated
  };

  std::uint32_t slots_;
  std::map<std::string, Entry> book_;
  Entry* current_ = nullptr;
  bool whole_ = true;
  std::vector<ProgramCall> calls_;
  bool following_ = false;
  bool followed_ = false;  // at the begin of the step
  std::uint32_t staged_ = 0;
  std::uint32_t entered_ = 0;
  ScheduleCounters counters_;
};

}  // namespace strata
