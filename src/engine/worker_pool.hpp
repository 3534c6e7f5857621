// Threads that touch payload so that the engine thread does not have to: casts, sums, updates.
// Thread: submit() from any; `done` is called on a worker.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/intrusive_queue.hpp"

namespace strata {

// A piece of work that its owner keeps alive until done() was called.
class Job {
 public:
  virtual void run() = 0;   // must not throw
  virtual void done() = 0;  // called after run(); the job may be gone when it returns

  Job* next = nullptr;  // for the queue

 protected:
  ~Job() = default;
};

class WorkerPool {
 public:
  // Throws Error(io) when the threads cannot be started.
  explicit WorkerPool(unsigned threads);
  // Pre: no job is outstanding. Blocks.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void submit(Job& job);

 private:
  void stop();
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  IntrusiveQueue<Job> queue_;  // guarded by mutex_, as all below
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace strata
