// Tells when events of one stream have fired: a thread that sleeps in the runtime until they have.
// A host function on the stream would tell as well, but it holds the stream up while it runs, and
// CUDA drops it when the context fails, and with it whoever waits.
// Thread: any. Events are told in the order of the calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "cuda/event_pool.hpp"
#include "strata/device.hpp"

namespace strata::cuda {

class EventWatcher {
 public:
  explicit EventWatcher(EventPool& events);
  // Tells what is left first. Blocks.
  ~EventWatcher();
  EventWatcher(const EventWatcher&) = delete;
  EventWatcher& operator=(const EventWatcher&) = delete;

  void notify(Event event, HostFunction function);

 private:
  struct Watch {
    Event event;
    HostFunction function;
  };

  void run();

  EventPool& events_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Watch> watches_;  // guarded by mutex_
  bool stop_ = false;          // guarded by mutex_
  std::thread thread_;
};

}  // namespace strata::cuda
