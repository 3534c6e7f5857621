// Port: threads that touch payload so that the engine thread does not have to: checksums, sums,
// updates. A job tells how much it will do, for whoever predicts its time instead of doing it.
//
// Ownership: a job's owner keeps it alive until done() was called.
// Thread: submit() from any; run() and done() are called on a worker.
#pragma once

#include <cstdint>
#include <string_view>

#include "strata/types.hpp"

namespace strata {

// What a job goes through. Sums of several passes over the same data count once.
struct JobCost {
  Bytes checked;                    // by checksums
  std::uint64_t updated_elems = 0;  // by the optimizer's rule
  std::uint64_t summed_elems = 0;   // accumulated, or summed for the norm
  // For a timeline; empty: none. The text stays until done(). No std::string: g++ 12 copies the
  // bits of aggregates that are made inside a co_await.
  std::string_view label = {};
};

class Job {
 public:
  explicit Job(const JobCost& what) : cost(what) {}
  virtual void run() = 0;   // must not throw
  virtual void done() = 0;  // called after run(); the job may be gone when it returns

  const JobCost cost;
  // When it ran; set before done().
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  Job* next = nullptr;  // for the queue

 protected:
  ~Job() = default;
};

class Workers {
 public:
  virtual ~Workers() = default;
  virtual void submit(Job& job) = 0;
  // Seconds for which workers ran jobs, summed over them. Thread: any.
  virtual double busy_seconds() const = 0;
};

}  // namespace strata
