// How long one stream has been running work: a pair of timing events around every piece, read when
// both have fired. The events are pooled.
// Thread: any.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <mutex>
#include <vector>

#include "base/first_failure.hpp"

namespace strata::cuda {

class StreamTimer {
 public:
  StreamTimer(int device, cudaStream_t stream, FirstFailure& failure)
      : device_(device), stream_(stream), failure_(failure) {}
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  // Calls `enqueue`, which puts one piece of work on the stream, and times the piece. Returns what
  // `enqueue` returns; failures of the timing itself go to the device's failure. Pre: the thread
  // has entered the device.
  template <class Enqueue>
  cudaError_t time(Enqueue&& enqueue) {
    const std::lock_guard lock(mutex_);
    begin();
    const cudaError_t result = enqueue();
    end();
    return result;
  }

  // Of the pieces that have run.
  double seconds();

  // Destroys the events. Pre: the stream's work has run.
  void close();

 private:
  struct Piece {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };

  // All hold mutex_.
  void begin();
  void end();
  void record(cudaEvent_t event);  // null: it could not be created
  void collect();
  bool succeeded(cudaError_t result, const char* call);

  const int device_;
  const cudaStream_t stream_;
  FirstFailure& failure_;

  std::mutex mutex_;
  std::deque<Piece> running_;
  std::vector<Piece> idle_;
  double seconds_ = 0;
};

}  // namespace strata::cuda
