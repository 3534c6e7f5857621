// Threads that work through one range together and are timed as one: what `strata bench optim`
// runs kernels on. Thread: one caller at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace strata::tool {

// CPUs that this process may run on: sched_getaffinity(2).
unsigned allowed_cpus();

class ThreadTeam {
 public:
  using Body = std::function<void(std::uint64_t begin, std::uint64_t end)>;

  // The caller of run() is one of the `threads`. Throws Error(io) when they cannot be started.
  explicit ThreadTeam(unsigned threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  unsigned threads() const { return static_cast<unsigned>(helpers_.size()) + 1; }

  // Calls body for [0, count) in chunks, each on the thread that is free first: a thread that loses
  // its CPU for a while holds up one chunk. Returns the seconds that it took. Blocks. Pre: `body`
  // does not throw.
  double run(std::uint64_t count, std::uint64_t chunk, const Body& body);

 private:
  void stop();
  void help();
  void take_chunks();

  std::atomic<std::uint64_t> next_{0};
  std::uint64_t count_ = 0;  // as chunk_ and body_: written while no helper works
  std::uint64_t chunk_ = 0;
  const Body* body_ = nullptr;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::condition_variable changed_;
  std::uint64_t runs_ = 0;
  std::size_t at_work_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> helpers_;
};

}  // namespace strata::tool
