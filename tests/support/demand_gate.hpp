// Holds back the work of a CpuDevice until something needs it. A piece of work runs when it is
// demanded: by the host (demand()), or by a demanded wait on another stream that has come to the
// head of its own. The seed may let some of it run at once, and `patience` ends any hold, so that
// ranks that wait for each other's collectives make progress as they would on hardware.
// Thread: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "cpu/stream_thread.hpp"

namespace strata::test {

enum class DemandPolicy : std::uint8_t {
  as_late_as_possible,  // hold everything
  random,               // hold about half of it, as the seed decides
};

class DemandGate final : public StreamHooks {
 public:
  DemandGate(DemandPolicy policy, std::uint64_t seed, std::chrono::milliseconds patience);

  void add_stream();

  // Before each enqueue, in the order of the stream.
  void enqueued(StreamId stream);
  // After the enqueue of the record that made `event`.
  void recorded(StreamId stream, Event event);

  void demand(Event event);
  // All that is enqueued on `stream` now.
  void demand(StreamId stream);
  // The host asked whether `event` is done and was told no: demands it one time in four.
  void polled(Event event);
  // Nothing is held any more.
  void open();

  void before(StreamId stream, const StreamWork& work) override;
  void after(StreamId stream, const StreamWork& work) override;

 private:
  struct Stream {
    std::uint64_t enqueued = 0;
    std::uint64_t started = 0;
    std::uint64_t demanded = 0;       // the first `demanded` pieces of work may run
    std::optional<Event> blocked_on;  // the wait at the head, once it has started
  };
  // Where the newest event of a slot stands.
  struct Mark {
    std::uint64_t generation = 0;
    StreamId stream;
    std::uint64_t count = 0;  // pieces of work up to and including the record
  };

  void demand_locked(Event event);
  void demand_locked(StreamId id, std::uint64_t count);
  bool lets_through(StreamId stream, std::uint64_t index) const;

  const DemandPolicy policy_;
  const std::uint64_t seed_;
  const std::chrono::milliseconds patience_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Stream> streams_;
  std::vector<Mark> marks_;  // by slot
  std::uint64_t polls_ = 0;
  bool open_ = false;
};

}  // namespace strata::test
