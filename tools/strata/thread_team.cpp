#include "thread_team.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

#include "base/signals_blocked.hpp"
#include "strata/clock.hpp"
#include "strata/error.hpp"

namespace strata::tool {

unsigned allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  }
  return std::max(1U, std::thread::hardware_concurrency());  // more CPUs than the set has bits
}

ThreadTeam::ThreadTeam(unsigned threads) {
  const SignalsBlocked inherited_by_threads;
  try {
    for (unsigned i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(ErrorCode::io,
                fmt::format("cannot start {} threads; lower --threads or raise ulimit -u", threads),
                {.errnum = error.code().value()});
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::take_chunks() {
  for (;;) {
    const std::uint64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (begin >= count_) return;
    (*body_)(begin, std::min(count_, begin + chunk_));
  }
}

void ThreadTeam::help() {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || runs_ != seen; });
    if (stopping_) return;
    seen = runs_;
    lock.unlock();
    take_chunks();
    lock.lock();
    if (--at_work_ == 0) changed_.notify_all();
  }
}

double ThreadTeam::run(std::uint64_t count, std::uint64_t chunk, const Body& body) {
  count_ = count;
  chunk_ = chunk;
  body_ = &body;
  next_ = 0;
  const SteadyClock clock;
  const std::int64_t began_ns = clock.now_ns();
  {
    const std::scoped_lock lock(mutex_);
    at_work_ = helpers_.size();
    ++runs_;
  }
  changed_.notify_all();
  take_chunks();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return at_work_ == 0; });
  return 1e-9 * static_cast<double>(clock.now_ns() - began_ns);
}

}  // namespace strata::tool
