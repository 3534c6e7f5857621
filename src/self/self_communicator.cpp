#include "self/self_communicator.hpp"

#include <array>

#include "base/check.hpp"

namespace strata {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  std::string_view name() const override { return "self"; }
  Rank rank() const override { return Rank{0}; }
  std::uint32_t size() const override { return 1; }
  Rank host_rank() const override { return Rank{0}; }
  std::uint32_t host_size() const override { return 1; }
  Bytes staging_bytes() const override { return Bytes{0}; }

  void attach(Device& device) override { device_ = &device; }

  void all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) override {
    for (const ShardedBuffer& buffer : buffers) {
      touch(stream, buffer.data, buffer.shard_elems * size_of(buffer.dtype));
    }
  }
  void reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) override {
    all_gather(stream, buffers);
  }
  void broadcast(StreamId stream, void* data, Bytes size, Rank root) override {
    STRATA_ASSERT(root == rank(), "broadcast from a rank that does not exist");
    touch(stream, data, size);
  }
  void all_reduce(StreamId stream, void* data, std::uint64_t count_elems, DType dtype) override {
    touch(stream, data, count_elems * size_of(dtype));
  }

  std::unique_ptr<Communicator> split(std::uint32_t, std::uint32_t) override {
    auto half = std::make_unique<SelfCommunicator>();
    half->device_ = device_;
    return half;
  }

  std::vector<std::byte> exchange(std::span<const std::byte> mine) override {
    STRATA_ASSERT(mine.size() <= kMaxExchange, "exchange() is for small messages");
    return {mine.begin(), mine.end()};
  }

  void set_timeout(std::chrono::milliseconds) override {}
  std::optional<Error> failure() const override { return std::nullopt; }
  void abort(std::string_view) override {}

 private:
  // Shows the device where the collective stands. A device with memory of its own has nothing to
  // check on the host, and a host function would only stall its stream.
  void touch(StreamId stream, const void* data, Bytes size) {
    STRATA_ASSERT(device_ != nullptr, "attach() comes before the first collective");
    if (!device_->host_addressable() || size == Bytes{0}) return;
    const std::array accesses = {Access{data, size, false}, Access{data, size, true}};
    device_->launch(
        stream, [] {}, accesses);
  }

  Device* device_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> create_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace strata
