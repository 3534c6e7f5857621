#include "virtual/virtual_communicator.hpp"

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata {
namespace {

double bytes_of(std::span<const ShardedBuffer> buffers) {
  double sum = 0;
  for (const ShardedBuffer& buffer : buffers) {
    sum += static_cast<double>((buffer.shard_elems * size_of(buffer.dtype)).value);
  }
  return sum;
}

}  // namespace

void VirtualCommunicator::attach(Device& device) {
  device_ = dynamic_cast<VirtualDevice*>(&device);
  STRATA_ASSERT(device_ != nullptr, "a virtual communicator needs a virtual device");
}

void VirtualCommunicator::take(StreamId stream, double received_bytes) {
  if (ranks_ == 1) return;
  const double seconds = pace_.latency_seconds +
                         (pace_.bytes_per_second > 0 ? received_bytes / pace_.bytes_per_second : 0);
  device_->launch_for(stream, std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}

void VirtualCommunicator::all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) {
  take(stream, (ranks_ - 1) * bytes_of(buffers));
}

void VirtualCommunicator::reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) {
  take(stream, (ranks_ - 1) * bytes_of(buffers));
}

void VirtualCommunicator::broadcast(StreamId stream, void*, Bytes size, Rank) {
  take(stream, static_cast<double>(size.value));
}

// Of a ring: twice the shards of the others.
void VirtualCommunicator::all_reduce(StreamId stream, void*, std::uint64_t count_elems,
                                     DType dtype) {
  const auto bytes = static_cast<double>((count_elems * size_of(dtype)).value);
  take(stream, 2 * bytes * (ranks_ - 1) / ranks_);
}

std::unique_ptr<Communicator> VirtualCommunicator::split(std::uint32_t, std::uint32_t) {
  throw Error(ErrorCode::not_supported, "a virtual communicator cannot be split");
}

std::vector<std::byte> VirtualCommunicator::exchange(std::span<const std::byte> mine) {
  machine_.sleep(static_cast<std::int64_t>(pace_.exchange_seconds * 1e9));
  std::vector<std::byte> all;
  for (std::uint32_t r = 0; r < ranks_; ++r) all.insert(all.end(), mine.begin(), mine.end());
  return all;
}

}  // namespace strata
