// What communicators that work on host-addressable memory share: each collective becomes one host
// function on the device's stream, with its accesses declared. A subclass only moves the bytes.
//
// Order: collectives of one communicator run one after another, in the order of the calls, also
// when they are enqueued on several streams; events order the streams.
// Errors: the function on the stream never throws. The first Error is kept for failure(), and
// collectives that run after it return at once.
// Allocation: none per collective once as many descriptors exist as are in flight at a time.
// Ownership: a subclass's destructor calls drain() first, since run() is its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/first_failure.hpp"
#include "strata/communicator.hpp"

namespace strata {

enum class CollectiveOp : std::uint8_t { all_gather, reduce_scatter, broadcast, all_reduce };

std::string_view name_of(CollectiveOp op);

// One enqueued collective. All-gather and reduce-scatter use `buffers`; the others use `data`.
struct Collective {
  CollectiveOp op = CollectiveOp::all_gather;
  std::vector<ShardedBuffer> buffers;
  std::byte* data = nullptr;
  Bytes size;                 // of data
  DType dtype = DType::fp32;  // of all_reduce
  Rank root;                  // of broadcast
};

class HostCommunicator : public Communicator {
 public:
  HostCommunicator() = default;
  HostCommunicator(const HostCommunicator&) = delete;
  HostCommunicator& operator=(const HostCommunicator&) = delete;
  ~HostCommunicator() override;

  bool host_memory_only() const final { return true; }
  void all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) final;
  void reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) final;
  void broadcast(StreamId stream, void* data, Bytes size, Rank root) final;
  void all_reduce(StreamId stream, void* data, std::uint64_t count_elems, DType dtype) final;
  std::optional<Error> failure() const final { return failure_.get(); }

 protected:
  // Moves the bytes, on the stream's thread. Throws Error when it cannot.
  virtual void run(const Collective& collective) = 0;

  // Called once, on the thread that met the first failure.
  virtual void on_first_failure(const Error&) {}

  // Records the failure if it is the first.
  void fail(const Error& error);

  // Sets the device. Throws Error(not_supported) when the CPU cannot address its memory.
  void set_device(Device& device);
  Device* device() const { return device_; }

  // Waits until every enqueued collective has run. Blocks.
  void drain();

  FirstFailure failure_;

 private:
  Collective& take_descriptor(CollectiveOp op);
  void put_back(Collective& collective);
  void enqueue_buffers(CollectiveOp op, StreamId stream, std::span<const ShardedBuffer> buffers);
  void enqueue(StreamId stream, Collective& collective);
  void execute(Collective& collective);
  void declare(const void* data, std::uint64_t size_bytes, bool writes);

  // Only the thread that enqueues.
  Device* device_ = nullptr;
  Event last_event_;
  StreamId last_stream_;
  std::vector<Access> accesses_;

  std::mutex descriptors_mutex_;
  std::vector<std::unique_ptr<Collective>> descriptors_;
  std::vector<Collective*> idle_;  // guarded by descriptors_mutex_

  std::atomic<std::uint64_t> pending_ = 0;
};

}  // namespace strata
