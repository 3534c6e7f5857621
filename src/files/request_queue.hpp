// Requests that wait for their turn: the most urgent first, equally urgent ones in order of
// submission, and never more at once than the queue depth. Writes have a depth of their own below
// it, so that a read that comes finds the device with room for it however much is written back.
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/block_io.hpp"

namespace strata::files {

struct QueueDepth {
  std::uint32_t requests = 16;  // at once
  std::uint32_t writes = 8;     // of these; flushes count as writes
};

class RequestQueue {
 public:
  // Pre (asserted): both depths are above 0.
  explicit RequestQueue(QueueDepth depth);

  void push(const IoRequest& request);
  // Takes the request to start now, if the depths allow one.
  std::optional<IoRequest> start_next();
  // A request that start_next() gave is over.
  void finish(IoOp op);

  bool can_start() const;
  std::uint32_t running() const { return reads_ + writes_; }

 private:
  struct Waiting {
    IoRequest request;
    std::uint64_t sequence = 0;
  };
  using Heap = std::vector<Waiting>;  // most urgent in front

  static bool later(const Waiting& a, const Waiting& b);
  static IoRequest take(Heap& heap);
  bool may_read() const { return !waiting_reads_.empty() && running() < depth_.requests; }
  bool may_write() const {
    return !waiting_writes_.empty() && running() < depth_.requests && writes_ < depth_.writes;
  }

  const QueueDepth depth_;
  Heap waiting_reads_;
  Heap waiting_writes_;
  std::uint64_t next_sequence_ = 0;
  std::uint32_t reads_ = 0;  // running, as below
  std::uint32_t writes_ = 0;
};

}  // namespace strata::files
