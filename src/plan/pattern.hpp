// Patterns: named sequences of program calls that recur, as "train" and "eval" do. The first step
// of a pattern records its calls; later ones are compared with the record. Pure bookkeeping.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strata/types.hpp"

namespace strata {

enum class CallKind : std::uint8_t { begin_step, gather, gradients, reduce, issue, end_step };
std::string_view name_of(CallKind kind);

struct ProgramCall {
  CallKind kind = CallKind::gather;
  UnitId unit;
  bool operator==(const ProgramCall&) const = default;
};

class PatternBook {
 public:
  // Begins a step of this pattern.
  void begin(const std::string& name);
  void record(ProgramCall call);
  // Ends the step; true when it made exactly the recorded calls. A first step, and one that
  // deviated, becomes the record.
  bool end();
  // Ends the step without keeping it.
  void abandon() { calls_.clear(); }

  std::uint64_t calls_so_far() const { return calls_.size(); }
  const std::vector<ProgramCall>* recorded(const std::string& name) const;

 private:
  std::map<std::string, std::vector<ProgramCall>> book_;
  std::string current_;
  std::vector<ProgramCall> calls_;
};

}  // namespace strata
