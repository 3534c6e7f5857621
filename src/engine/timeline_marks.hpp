// How the engine and the session enter what they do into a timeline: nothing, and at no cost, while
// none records.
//
// Ownership: borrows timeline, device and clock; outlives work that was marked.
// Thread: any.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "strata/clock.hpp"
#include "strata/device.hpp"
#include "strata/timeline.hpp"

namespace strata {

class TimelineMarks {
 public:
  // `timeline` may be null.
  TimelineMarks(Timeline* timeline, Device& device, const Clock& clock)
      : timeline_(timeline), device_(device), clock_(clock) {}
  TimelineMarks(const TimelineMarks&) = delete;
  TimelineMarks& operator=(const TimelineMarks&) = delete;

  bool on() const { return timeline_ != nullptr && timeline_->recording(); }
  std::int64_t now_ns() const { return clock_.now_ns(); }

  // "what unit" while recording, otherwise empty.
  std::string label(std::string_view what, std::string_view unit) const {
    if (!on()) return {};
    std::string text(what);
    if (!unit.empty()) text.append(" ").append(unit);
    return text;
  }
  // Entered only while recording. Pre: a label.
  void add(TimelineRow row, std::string label, std::int64_t begin_ns, std::int64_t end_ns) const {
    if (on()) timeline_->add({row, std::move(label), begin_ns, end_ns});
  }

  // Work on a stream: from when the work before it has run until what is enqueued when it ends.
  using Mark = std::shared_ptr<TimelineEntry>;
  Mark begin(StreamId stream) const {
    if (!on()) return nullptr;
    auto entry = std::make_shared<TimelineEntry>();
    device_.notify(device_.record(stream),
                   [entry, clock = &clock_] { entry->begin_ns = clock->now_ns(); });
    return entry;
  }
  void end(const Mark& mark, StreamId stream, TimelineRow row, std::string label) const {
    if (mark == nullptr || label.empty()) return;  // it ends after the recording
    mark->row = row;
    mark->name = std::move(label);
    device_.notify(device_.record(stream), [mark, clock = &clock_, timeline = timeline_] {
      mark->end_ns = clock->now_ns();
      timeline->add(*mark);
    });
  }

 private:
  Timeline* const timeline_;
  Device& device_;
  const Clock& clock_;
};

}  // namespace strata
