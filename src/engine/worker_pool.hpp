// Threads that touch payload so that the engine thread does not have to: casts, sums, updates.
// Thread: submit() from any; `done` is called on a worker.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/cpus.hpp"
#include "base/intrusive_queue.hpp"
#include "strata/log.hpp"

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
  // Every thread may run on all of `cpus` (empty: wherever the caller may), for the kernel knows
  // which of them are free and a thread kept on one CPU would wait behind whatever else runs there.
  // Tells `log` once when the kernel refuses them; the workers then run where the caller may.
  // Throws Error(io) when the threads cannot be started.
  explicit WorkerPool(unsigned threads, const CpuSet& cpus = {}, const LogSink& log = {});
  // Pre: no job is outstanding. Blocks.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void submit(Job& job);

 private:
  void keep_on(const CpuSet& cpus, const LogSink& log);
  void stop();
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  IntrusiveQueue<Job> queue_;  // guarded by mutex_, as all below
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace strata
