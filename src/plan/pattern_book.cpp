#include "plan/pattern_book.hpp"

#include <utility>

namespace strata {

std::uint64_t PatternBook::begin(const std::string& name, bool whole) {
  current_ = &book_[name];
  whole_ = whole;
  calls_.clear();
  following_ = followed_ = false;
  staged_ = entered_ = 0;
  return whole && current_->schedule ? current_->schedule->hash : 0;
}

void PatternBook::follow(bool agreed) {
  following_ = followed_ = agreed && whole_ && current_->schedule.has_value();
}

bool PatternBook::record(ProgramCall call) {
  calls_.push_back(call);
  if (!following_) return false;
  const std::vector<ProgramCall>& recorded = current_->schedule->calls;
  following_ = calls_.size() <= recorded.size() && recorded[calls_.size() - 1] == call;
  return !following_;
}

LookAhead PatternBook::look_ahead() {
  if (!following_ || calls_.empty()) return {};
  const Schedule& schedule = *current_->schedule;
  const std::size_t call = calls_.size() - 1;
  const std::span<const UnitId> gathers = schedule.gathers;
  const auto next = [&](std::uint32_t& so_far, std::uint32_t until) {
    const std::uint32_t from = std::exchange(so_far, until);
    return gathers.subspan(from, until - from);
  };
  return {next(staged_, schedule.staged_after[call]), next(entered_, schedule.entered_after[call])};
}

void PatternBook::spoil() { following_ = whole_ = false; }

bool PatternBook::end() {
  ++counters_.steps;
  if (!whole_) return false;
  const bool repeated = current_->schedule && current_->schedule->calls == calls_;
  counters_.followed += followed_ && repeated ? 1 : 0;
  counters_.deviations += followed_ && !repeated ? 1 : 0;
  if (!repeated && (!current_->schedule || current_->deviation == calls_)) {
    current_->schedule = make_schedule(calls_, slots_);
    current_->deviation.clear();
  } else if (repeated) {
    current_->deviation.clear();
  } else {
    current_->deviation = calls_;
  }
  following_ = followed_ = false;
  return repeated;
}

void PatternBook::abandon() {
  calls_.clear();
  following_ = followed_ = false;
}

const Schedule* PatternBook::schedule(const std::string& name) const {
  const auto found = book_.find(name);
  return found == book_.end() || !found->second.schedule ? nullptr : &*found->second.schedule;
}

}  // namespace strata
