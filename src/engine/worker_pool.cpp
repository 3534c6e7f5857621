#include "engine/worker_pool.hpp"

#include "base/check.hpp"
#include "base/signals_blocked.hpp"

namespace strata {

WorkerPool::WorkerPool(unsigned threads) {
  const SignalsBlocked inherited_by_threads;
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::scoped_lock lock(mutex_);
    STRATA_ASSERT(queue_.empty(), "workers end with jobs waiting");
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::submit(Job& job) {
  {
    const std::scoped_lock lock(mutex_);
    queue_.push(job);
  }
  wake_.notify_one();
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job& job = queue_.pop();
    lock.unlock();
    job.run();
    job.done();
    lock.lock();
  }
}

}  // namespace strata
