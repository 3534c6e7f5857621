#include "plan/program_call.hpp"

namespace strata {

std::string_view name_of(CallKind kind) {
  switch (kind) {
    case CallKind::begin_step: return "begin_step";
    case CallKind::gather: return "gather";
    case CallKind::reduce: return "reduce";
    case CallKind::issue: return "issue";
    case CallKind::end_step: return "end";
  }
  return "?";
}

}  // namespace strata
