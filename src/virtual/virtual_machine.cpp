#include "virtual/virtual_machine.hpp"

#include <utility>

#include "base/check.hpp"

namespace strata {

void VirtualMachine::call_at(std::int64_t at_ns, std::function<void()> event) {
  STRATA_ASSERT(at_ns >= now_ns_, "an event in the past");
  ahead_.push({at_ns, next_sequence_++, std::move(event)});
}

void VirtualMachine::sleep(std::int64_t duration_ns) {
  bool over = false;
  call_at(now_ns_ + duration_ns, [&over] { over = true; });
  run_until([&over] { return over; });
}

void VirtualMachine::run_until(const std::function<bool()>& reached) {
  for (;;) {
    const bool busy = pass_ && pass_();
    if (reached()) return;
    if (!busy) STRATA_ASSERT(happen(), "everyone on a virtual machine waits for nothing");
  }
}

bool VirtualMachine::happen() {
  if (ahead_.empty()) return false;
  now_ns_ = ahead_.top().at_ns;
  // All that happens at this time, before anyone looks.
  while (!ahead_.empty() && ahead_.top().at_ns == now_ns_) {
    const std::function<void()> event = std::move(const_cast<Ahead&>(ahead_.top()).event);
    ahead_.pop();
    ++happened_;
    event();
  }
  return true;
}

void VirtualMachine::PacedWorkers::submit(Job& job) {
  if (idle_ == 0) {
    waiting_.push(job);
    return;
  }
  --idle_;
  start(job);
}

void VirtualMachine::PacedWorkers::start(Job& job) {
  const std::int64_t duration = duration_ns(job.cost);
  busy_ns_ += duration;
  job.begin_ns = machine_.now_ns();
  job.end_ns = job.begin_ns + duration;
  machine_.call_at(job.end_ns, [this, done = &job] {
    if (waiting_.empty()) {
      ++idle_;
    } else {
      start(waiting_.pop());
    }
    done->done();
  });
}

std::int64_t VirtualMachine::PacedWorkers::duration_ns(const JobCost& cost) const {
  const auto seconds = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  const double sum =
      seconds(static_cast<double>(cost.checked.value), pace_.checked_bytes_per_second) +
      seconds(static_cast<double>(cost.updated_elems), pace_.updated_elems_per_second) +
      seconds(static_cast<double>(cost.summed_elems), pace_.summed_elems_per_second);
  return static_cast<std::int64_t>(sum * 1e9);
}

}  // namespace strata
