#include "engine/worker_pool.hpp"

#include <fmt/format.h>

#include <system_error>

#include "base/check.hpp"
#include "base/signals_blocked.hpp"
#include "strata/clock.hpp"
#include "strata/error.hpp"

namespace strata {

WorkerPool::WorkerPool(unsigned threads, const CpuSet& cpus, const LogSink& log) {
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
  if (!cpus.empty()) keep_on(cpus, log);
}

// From here and not by each thread itself, so that it holds for the first job already.
void WorkerPool::keep_on(const CpuSet& cpus, const LogSink& log) {
  for (std::thread& thread : threads_) {
    const int errnum = keep_thread_on(thread.native_handle(), cpus);
    if (errnum == 0) continue;
    if (log) {
      log(LogLevel::warning,
          fmt::format("workers cannot be kept on CPUs {} ({}), and run where the process may; "
                      "check its cpuset",
                      format_cpu_list(cpus), std::generic_category().message(errnum)));
    }
    return;
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
  const SteadyClock clock;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job& job = queue_.pop();
    lock.unlock();
    job.begin_ns = clock.now_ns();
    job.run();
    job.end_ns = clock.now_ns();
    busy_ns_.fetch_add(job.end_ns - job.begin_ns, std::memory_order_relaxed);
    job.done();
    lock.lock();
  }
}

}  // namespace strata
