#include "plan/pattern.hpp"

#include <utility>

namespace strata {

std::string_view name_of(CallKind kind) {
  switch (kind) {
    case CallKind::begin_step: return "begin_step";
    case CallKind::gather: return "gather";
    case CallKind::gradients: return "gradients";
    case CallKind::reduce: return "reduce";
    case CallKind::issue: return "issue";
    case CallKind::end_step: return "end";
  }
  return "?";
}

void PatternBook::begin(const std::string& name) {
  current_ = name;
  calls_.clear();
}

void PatternBook::record(ProgramCall call) { calls_.push_back(call); }

bool PatternBook::end() {
  const auto [entry, is_first] = book_.try_emplace(current_);
  if (!is_first && entry->second == calls_) return true;
  entry->second = std::exchange(calls_, {});
  return false;
}

const std::vector<ProgramCall>* PatternBook::recorded(const std::string& name) const {
  const auto found = book_.find(name);
  return found == book_.end() ? nullptr : &found->second;
}

}  // namespace strata
