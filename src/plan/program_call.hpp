// The calls of a program, as a step makes them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "strata/types.hpp"

namespace strata {

// The calls that every rank makes in the same order.
enum class CallKind : std::uint8_t { begin_step, gather, reduce, issue, end_step };
std::string_view name_of(CallKind kind);

struct ProgramCall {
  CallKind kind = CallKind::gather;
  UnitId unit;
  bool operator==(const ProgramCall&) const = default;
};

// The end of a gather lease, which each rank may put where it likes.
struct Release {
  std::uint32_t after_call = 0;  // index
  UnitId unit;
};

struct RecordedStep {
  std::vector<UnitId> held;  // units whose leases are older than the step, one entry for each lease
  std::vector<ProgramCall> calls;
  std::vector<Release> releases;  // in the order in which they came

  void clear() {
    held.clear();
    calls.clear();
    releases.clear();
  }
};

}  // namespace strata
