// One stream of a device whose streams are threads: a queue of work and the thread that runs it
// in order. Events connect streams through the EventPool that they share; since an event is
// recorded before anyone can wait on it, waits between streams form no cycle.
//
// StreamHooks is the seam for devices that delay or pace the work of another: they decide when a
// piece of work may begin and when it counts as done, and never what it does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "cpu/event_pool.hpp"
#include "strata/device.hpp"
#include "strata/types.hpp"

namespace strata {

struct CopyWork {
  void* dst = nullptr;
  const void* src = nullptr;
  Bytes size;
  CopyKind kind = CopyKind::device_to_device;
};
struct ZeroWork {
  void* dst = nullptr;
  Bytes size;
};
struct RecordWork {
  Event event;
};
struct WaitWork {
  Event event;
};

using StreamWork = std::variant<CopyWork, ZeroWork, HostFunction, ElementOp, RecordWork, WaitWork>;

// Called on the stream's thread, for each piece of work in order. Must not throw or call the
// device. May block, as long as every stream goes on in the end.
class StreamHooks {
 public:
  virtual ~StreamHooks() = default;

  // The queue is empty; the thread is about to sleep.
  virtual void idle(StreamId) {}
  // `work` is next. An event to record has not fired yet.
  virtual void before(StreamId, const StreamWork&) {}
  // `work` has run. Not called for RecordWork: what follows an event is nobody's to delay.
  virtual void after(StreamId, const StreamWork&) {}
};

class StreamThread {
 public:
  // `events` and `hooks` (may be null) outlive the stream.
  StreamThread(StreamId id, std::string_view name, EventPool& events, StreamHooks* hooks);
  ~StreamThread();
  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;

  // Does not block. Thread: any. Pre: begin_close() was not called.
  void push(StreamWork work);

  // Seconds spent in work and in the hook after it; waiting for events does not count.
  double busy_seconds() const;

  // Two steps, so that a device closes all streams before it waits for one. Idempotent.
  void begin_close();
  void join();  // Blocks until all work has run.

 private:
  void run() noexcept;
  bool take_batch();
  void execute(const StreamWork& work);
  void execute_timed(const StreamWork& work);

  const StreamId id_;
  const std::string name_;
  EventPool& events_;
  StreamHooks* const hooks_;
  std::atomic<std::int64_t> busy_ns_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StreamWork> incoming_;  // guarded by mutex_
  bool closing_ = false;              // guarded by mutex_

  // The thread swaps the queue for its emptied batch, so that neither allocates once warm.
  std::vector<StreamWork> batch_;
  std::vector<HostFunction> scratch_;
  std::thread thread_;
};

}  // namespace strata
