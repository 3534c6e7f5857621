#include "ports/host_communicator.hpp"

#include <fmt/format.h>

#include "base/check.hpp"

namespace strata {

std::string_view name_of(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::all_gather: return "all_gather";
    case CollectiveOp::reduce_scatter: return "reduce_scatter";
    case CollectiveOp::broadcast: return "broadcast";
    case CollectiveOp::all_reduce: return "all_reduce";
  }
  return "?";
}

HostCommunicator::~HostCommunicator() {
  STRATA_ASSERT(pending_.load(std::memory_order_acquire) == 0,
                "a communicator was destroyed under its collectives");
}

void HostCommunicator::all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) {
  enqueue_buffers(CollectiveOp::all_gather, stream, buffers);
}

void HostCommunicator::reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) {
  enqueue_buffers(CollectiveOp::reduce_scatter, stream, buffers);
}

void HostCommunicator::broadcast(StreamId stream, void* data, Bytes size, Rank root) {
  STRATA_ASSERT(root.value < this->size(), "broadcast from a rank that does not exist");
  accesses_.clear();
  declare(data, size.value, root != rank());
  Collective& collective = take_descriptor(CollectiveOp::broadcast);
  collective.data = static_cast<std::byte*>(data);
  collective.size = size;
  collective.root = root;
  enqueue(stream, collective);
}

void HostCommunicator::all_reduce(StreamId stream, void* data, std::uint64_t count_elems,
                                  DType dtype) {
  const Bytes size = count_elems * size_of(dtype);
  accesses_.clear();
  declare(data, size.value, false);
  declare(data, size.value, true);
  Collective& collective = take_descriptor(CollectiveOp::all_reduce);
  collective.data = static_cast<std::byte*>(data);
  collective.size = size;
  collective.dtype = dtype;
  enqueue(stream, collective);
}

void HostCommunicator::enqueue_buffers(CollectiveOp op, StreamId stream,
                                       std::span<const ShardedBuffer> buffers) {
  accesses_.clear();
  for (const ShardedBuffer& buffer : buffers) {
    const std::uint64_t shard = buffer.shard_elems * size_of(buffer.dtype).value;
    const auto* data = static_cast<const std::byte*>(buffer.data);
    // Positions that a reduce-scatter leaves unspecified count as written.
    if (op == CollectiveOp::all_gather) {
      declare(data + rank().value * shard, shard, false);
    } else {
      declare(data, shard * size(), false);
    }
    declare(data, shard * size(), true);
  }
  Collective& collective = take_descriptor(op);
  collective.buffers.assign(buffers.begin(), buffers.end());
  enqueue(stream, collective);
}

void HostCommunicator::declare(const void* data, std::uint64_t size_bytes, bool writes) {
  if (size_bytes > 0) accesses_.push_back({data, Bytes{size_bytes}, writes});
}

Collective& HostCommunicator::take_descriptor(CollectiveOp op) {
  const std::lock_guard lock(descriptors_mutex_);
  if (idle_.empty()) {
    descriptors_.push_back(std::make_unique<Collective>());
    idle_.reserve(descriptors_.size());
    idle_.push_back(descriptors_.back().get());
  }
  Collective& collective = *idle_.back();
  idle_.pop_back();
  collective.op = op;
  return collective;
}

void HostCommunicator::put_back(Collective& collective) {
  const std::lock_guard lock(descriptors_mutex_);
  idle_.push_back(&collective);
}

void HostCommunicator::enqueue(StreamId stream, Collective& collective) {
  STRATA_ASSERT(device_ != nullptr, "attach() comes before the first collective");
  if (last_event_.recorded() && last_stream_ != stream) device_->wait(stream, last_event_);
  pending_.fetch_add(1, std::memory_order_relaxed);
  try {
    device_->launch(
        stream, [this, job = &collective] { execute(*job); }, accesses_);
  } catch (...) {
    put_back(collective);
    pending_.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
  last_event_ = device_->record(stream);
  last_stream_ = stream;
}

void HostCommunicator::execute(Collective& collective) {
  if (!failure_.is_set()) {
    try {
      run(collective);
    } catch (const Error& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(Error(ErrorCode::device, fmt::format("{}: {}", name_of(collective.op), error.what())));
    }
  }
  put_back(collective);
  // The last touch of *this: drain() may return now.
  pending_.fetch_sub(1, std::memory_order_release);
}

void HostCommunicator::fail(const Error& error) {
  if (failure_.record(error)) on_first_failure(error);
}

void HostCommunicator::set_device(Device& device) {
  if (!device.host_addressable()) {
    throw Error(ErrorCode::not_supported,
                fmt::format("communicator {} needs a device whose memory the CPU can address, and "
                            "{} has none; use the NCCL communicator",
                            name(), device.name()));
  }
  drain();
  device_ = &device;
  last_event_ = Event{};
}

void HostCommunicator::drain() {
  if (pending_.load(std::memory_order_acquire) > 0) device_->synchronize(last_event_);
}

}  // namespace strata
