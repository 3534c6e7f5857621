// Host functions on their way through a CUDA stream. CUDA carries a plain pointer and drops it when
// the context fails, so the functions stay owned here. Their places are reused.
// Thread: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "strata/device.hpp"

namespace strata::cuda {

class HostCalls {
 public:
  struct Call {
    HostCalls* owner = nullptr;
    HostFunction function;
    std::atomic<std::int64_t>* busy_ns = nullptr;
  };

  // A call to hand to cudaLaunchHostFunc together with run(). `busy_ns` gets the time that the
  // function took.
  Call& prepare(HostFunction function, std::atomic<std::int64_t>& busy_ns);

  // Drops a call that was not handed on.
  void cancel(Call& call);

  // Blocks until no function runs.
  void wait_until_idle();

  // For cudaLaunchHostFunc: runs the call's function, destroys it and gives the place back.
  static void run(void* call);

 private:
  void leave(Call& call);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;  // guarded by mutex_, as below
  std::vector<Call*> idle_;
  int running_ = 0;
};

}  // namespace strata::cuda
