#include "engine/worker_pool.hpp"

#include <fmt/format.h>

#include <system_error>

#include "base/check.hpp"
#include "base/signals_blocked.hpp"
#include "strata/error.hpp"

namespace strata {

WorkerPool::WorkerPool(unsigned threads) {
  const SignalsBlocked inherited_by_threads;
  try {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(
        ErrorCode::io,
        fmt::format("cannot start {} workers; lower engine.workers or raise ulimit -u", threads),
        {.errnum = error.code().value()});
  }
}

WorkerPool::~WorkerPool() {
  STRATA_ASSERT(queue_.empty(), "workers end with jobs waiting");
  stop();
}

void WorkerPool::stop() {
  {
    const std::scoped_lock lock(mutex_);
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
