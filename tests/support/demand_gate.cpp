#include "support/demand_gate.hpp"

#include "base/rng.hpp"

namespace strata::test {
namespace {

constexpr std::uint64_t kPollKey = 0x706F6C6C;

}  // namespace

DemandGate::DemandGate(DemandPolicy policy, std::uint64_t seed, std::chrono::milliseconds patience)
    : policy_(policy), seed_(seed), patience_(patience) {}

void DemandGate::add_stream() {
  const std::lock_guard lock(mutex_);
  streams_.emplace_back();
}

void DemandGate::enqueued(StreamId stream) {
  const std::lock_guard lock(mutex_);
  ++streams_.at(stream.value).enqueued;
}

void DemandGate::recorded(StreamId stream, Event event) {
  const std::lock_guard lock(mutex_);
  if (event.slot >= marks_.size()) marks_.resize(event.slot + 1);
  marks_[event.slot] = {event.generation, stream, streams_.at(stream.value).enqueued};
}

void DemandGate::demand(Event event) {
  const std::lock_guard lock(mutex_);
  demand_locked(event);
}

void DemandGate::demand(StreamId stream) {
  const std::lock_guard lock(mutex_);
  demand_locked(stream, streams_.at(stream.value).enqueued);
}

void DemandGate::polled(Event event) {
  const std::lock_guard lock(mutex_);
  if (rng::at(seed_ ^ kPollKey, polls_++) % 4 == 0) demand_locked(event);
}

void DemandGate::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

void DemandGate::before(StreamId id, const StreamWork& work) {
  std::unique_lock lock(mutex_);
  Stream& stream = streams_.at(id.value);
  const std::uint64_t index = stream.started++;
  if (!lets_through(id, index)) {
    changed_.wait_for(lock, patience_, [&] { return open_ || index < stream.demanded; });
  }
  if (const auto* wait = std::get_if<WaitWork>(&work)) {
    stream.blocked_on = wait->event;
    if (index < stream.demanded) demand_locked(wait->event);
  }
}

void DemandGate::after(StreamId id, const StreamWork& work) {
  if (!std::holds_alternative<WaitWork>(work)) return;
  const std::lock_guard lock(mutex_);
  streams_.at(id.value).blocked_on.reset();
}

void DemandGate::demand_locked(Event event) {
  if (event.slot >= marks_.size() || marks_[event.slot].generation != event.generation) return;
  const Mark mark = marks_[event.slot];
  demand_locked(mark.stream, mark.count);
}

// Demands pass on only from the wait that a stream stands at. A wait deeper in the queue passes
// them on when it gets there: that is as late as possible.
void DemandGate::demand_locked(StreamId id, std::uint64_t count) {
  Stream& stream = streams_.at(id.value);
  // Demanded before: so was what it waits for. This also ends the recursion, since a stream may
  // still look blocked on an event that has fired.
  if (stream.demanded >= count) return;
  stream.demanded = count;
  changed_.notify_all();
  if (stream.blocked_on && stream.started <= stream.demanded) demand_locked(*stream.blocked_on);
}

bool DemandGate::lets_through(StreamId stream, std::uint64_t index) const {
  return policy_ == DemandPolicy::random && (rng::at(seed_ + stream.value + 1, index) & 1U) != 0;
}

}  // namespace strata::test
