// The calls of a program, as a step makes them.
#pragma once

#include <cstdint>
#include <string_view>

#include "strata/types.hpp"

namespace strata {

enum class CallKind : std::uint8_t {
  begin_step,
  gather,
  release,  // of one gather lease
  gradients,
  reduce,
  issue,
  end_step,
};
std::string_view name_of(CallKind kind);

struct ProgramCall {
  CallKind kind = CallKind::gather;
  UnitId unit;
  bool operator==(const ProgramCall&) const = default;
};

}  // namespace strata
