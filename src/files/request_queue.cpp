#include "files/request_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace strata::files {

RequestQueue::RequestQueue(QueueDepth depth) : depth_(depth) {
  STRATA_ASSERT(depth.requests > 0 && depth.writes > 0, "a queue depth of 0 starts nothing");
}

// Makes std::push_heap keep the most urgent request in front.
bool RequestQueue::later(const Waiting& a, const Waiting& b) {
  return std::pair(a.request.priority, a.sequence) > std::pair(b.request.priority, b.sequence);
}

void RequestQueue::push(const IoRequest& request) {
  Heap& heap = request.op == IoOp::read ? waiting_reads_ : waiting_writes_;
  heap.push_back({request, next_sequence_++});
  std::push_heap(heap.begin(), heap.end(), later);
}

IoRequest RequestQueue::take(Heap& heap) {
  std::pop_heap(heap.begin(), heap.end(), later);
  const IoRequest request = heap.back().request;
  heap.pop_back();
  return request;
}

bool RequestQueue::can_start() const { return may_read() || may_write(); }

std::optional<IoRequest> RequestQueue::start_next() {
  if (!can_start()) return std::nullopt;
  const bool read =
      may_read() && (!may_write() || later(waiting_writes_.front(), waiting_reads_.front()));
  ++(read ? reads_ : writes_);
  return take(read ? waiting_reads_ : waiting_writes_);
}

void RequestQueue::finish(IoOp op) {
  std::uint32_t& running = op == IoOp::read ? reads_ : writes_;
  STRATA_ASSERT(running > 0, "a request finished twice");
  --running;
}

}  // namespace strata::files
