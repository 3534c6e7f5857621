// The events of one GPU. A slot owns a cudaEvent_t and is recorded again once its event has fired;
// the generation tells the uses apart (Device::record), so that no wait ever falls on an event that
// was not recorded, which CUDA would silently let pass. Slots are never given back: their number is
// the largest number of events that were pending at once, after which recording allocates nothing.
//
// A wait that the order of the calls makes true anyway is left out: on the event's own stream, for
// an event that has fired, or behind a later event of the same stream that was waited for before.
// Thread: any. Asking about an event that was never handed out is an assertion. A full stream makes
// CUDA block in record() and wait(); those hold up only the same stream's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/first_failure.hpp"
#include "strata/device.hpp"

namespace strata::cuda {

class EventPool {
 public:
  // Failures of the runtime go to `failure`. An event that the runtime gives up counts as fired;
  // record() blocks until the stream is idle when it cannot make one.
  EventPool(int device, FirstFailure& failure) : device_(device), failure_(failure) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // Streams are numbered in the order of these calls.
  void add_stream(cudaStream_t handle);

  Event record(StreamId stream);
  void wait(StreamId stream, Event event);
  bool done(Event event);
  // Blocks until the event has fired.
  void synchronize(Event event);
  // The stream on which the event was recorded, or is the latest use of its slot.
  StreamId stream_of(Event event);

  // Destroys the events. Pre: all have fired.
  void close();

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Slot {
    cudaEvent_t handle = nullptr;
    std::uint64_t generation = 0;
    std::uint64_t position = 0;  // in its stream's row of events, from 1
    StreamId stream;
    std::uint32_t next = kNone;  // pending behind it on the stream, or free
    std::uint32_t waiters = 0;   // threads in a call of CUDA about it
    bool pending = false;        // in its stream's list
    bool fired = true;
  };
  struct Stream {
    cudaStream_t handle = nullptr;
    std::mutex enqueueing;         // taken before mutex_
    std::uint64_t recorded = 0;    // events so far
    std::uint32_t oldest = kNone;  // the list of pending slots
    std::uint32_t newest = kNone;
    std::vector<std::uint64_t> waited;  // by stream: the latest position that it stands behind
  };

  Stream& stream_at(StreamId stream);

  // All hold mutex_.
  void let_go(std::uint32_t index);
  Slot& checked(Event event);
  bool has_fired(Slot& slot, std::uint64_t generation);
  void collect_fired(Stream& stream);
  void put_back(std::uint32_t index);
  std::uint32_t take_slot();
  bool succeeded(cudaError_t result, std::string_view call);

  const int device_;
  FirstFailure& failure_;
  mutable std::mutex mutex_;
  std::deque<Slot> slots_;  // a deque, because waiters stand on a slot while others are added
  std::deque<Stream> streams_;
  std::uint32_t free_ = kNone;
};

}  // namespace strata::cuda
