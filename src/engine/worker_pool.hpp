// Workers on threads of this process.
// Thread: as Workers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/cpus.hpp"
#include "base/intrusive_queue.hpp"
#include "ports/workers.hpp"
#include "strata/log.hpp"

namespace strata {

class WorkerPool final : public Workers {
 public:
  // Every thread may run on all of `cpus` (empty: wherever the caller may), for the kernel knows
  // which of them are free and a thread kept on one CPU would wait behind whatever else runs there.
  // Tells `log` once when the kernel refuses them; the workers then run where the caller may.
  // Throws Error(io) when the threads cannot be started.
  explicit WorkerPool(unsigned threads, const CpuSet& cpus = {}, const LogSink& log = {});
  // Pre: no job is outstanding. Blocks.
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void submit(Job& job) override;
  double busy_seconds() const override {
    return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) * 1e-9;
  }

 private:
  void keep_on(const CpuSet& cpus, const LogSink& log);
  void stop();
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  IntrusiveQueue<Job> queue_;  // guarded by mutex_, as all below
  bool stopping_ = false;

  std::atomic<std::int64_t> busy_ns_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace strata
