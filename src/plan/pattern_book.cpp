#include "plan/pattern_book.hpp"

#include <algorithm>

namespace strata {

std::uint64_t PatternBook::begin(const std::string& name, std::uint32_t micro_batches,
                                 std::span<const UnitId> held) {
  std::pair<std::string, std::uint32_t> key(name, micro_batches);
  if (book_.size() == kMostPatterns && !book_.contains(key)) book_.clear();
  current_ = &book_[std::move(key)];
  step_.clear();
  step_.held.assign(held.begin(), held.end());
  spoiled_ = following_ = followed_ = false;
  staged_ = entered_ = 0;
  if (!current_->schedule || current_->schedule->held != step_.held) return 0;
  return current_->schedule->hash;
}

void PatternBook::follow(bool agreed) {
  following_ = followed_ = agreed && current_->schedule && current_->schedule->held == step_.held;
}

bool PatternBook::record(ProgramCall call, bool held) {
  step_.calls.push_back(call);
  if (!following_) return false;
  const Schedule& schedule = *current_->schedule;
  const std::size_t position = step_.calls.size() - 1;
  following_ = position < schedule.calls.size() && schedule.calls[position] == call;
  if (following_ && call.kind == CallKind::gather && shares()) following_ = held;
  return !following_;
}

bool PatternBook::shares() const {
  const std::vector<std::uint32_t>& called_at = current_->schedule->called_at;
  const std::size_t position = step_.calls.size() - 1;
  return position > 0 && called_at[position] == called_at[position - 1];
}

void PatternBook::record_release(UnitId unit) {
  if (step_.calls.empty()) return;
  step_.releases.push_back({static_cast<std::uint32_t>(step_.calls.size() - 1), unit});
}

LookAhead PatternBook::look_ahead() {
  if (!following_ || step_.calls.empty()) return {};
  const Schedule& schedule = *current_->schedule;
  const std::size_t call = step_.calls.size() - 1;
  const std::span<const UnitId> gathers = schedule.gathers;
  const auto next = [&](std::uint32_t& so_far, std::uint32_t until) {
    const std::uint32_t from = std::max(std::exchange(so_far, until), schedule.called_at[call]);
    return gathers.subspan(from, std::max(from, until) - from);
  };
  return {next(staged_, schedule.staged_at[call]), next(entered_, schedule.entered_at[call])};
}

void PatternBook::spoil() {
  spoiled_ = true;
  following_ = false;
}

bool PatternBook::repeats(const Schedule& schedule) const {
  return schedule.held == step_.held && schedule.calls == step_.calls;
}

bool PatternBook::end() {
  ++counters_.steps;
  const bool repeated = !spoiled_ && current_->schedule && repeats(*current_->schedule);
  counters_.followed += followed_ && following_ && repeated ? 1 : 0;
  counters_.deviations += followed_ && !(following_ && repeated) ? 1 : 0;
  if (repeated) {
    current_->deviation.clear();
  } else if (!spoiled_) {
    const bool again = current_->deviation == step_.calls && current_->deviation_held == step_.held;
    if (!current_->schedule || again) {
      current_->schedule = make_schedule(step_, slots_);
      current_->deviation.clear();
    } else {
      current_->deviation = step_.calls;
      current_->deviation_held = step_.held;
    }
  }
  following_ = followed_ = false;
  return repeated;
}

void PatternBook::abandon() {
  step_.clear();
  following_ = followed_ = false;
}

const Schedule* PatternBook::schedule(const std::string& name, std::uint32_t micro_batches) const {
  const auto found = book_.find({name, micro_batches});
  return found == book_.end() || !found->second.schedule ? nullptr : &*found->second.schedule;
}

}  // namespace strata
