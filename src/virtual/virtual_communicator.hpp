// A Communicator in virtual time: this process is rank 0 of many that all do the same at the same
// time. Collectives take latency + bytes received / rate of their stream's time.
//
// Ownership: machine and device outlive the communicator. Thread: one.
#pragma once

#include <cstdint>

#include "strata/communicator.hpp"
#include "virtual/virtual_device.hpp"
#include "virtual/virtual_machine.hpp"

namespace strata {

struct CollectivePace {
  double bytes_per_second = 0;  // that a rank receives; 0: no time but the latency
  double latency_seconds = 0;   // of a collective
  double exchange_seconds = 0;  // of the control plane
};

class VirtualCommunicator final : public Communicator {
 public:
  VirtualCommunicator(VirtualMachine& machine, std::uint32_t ranks, std::uint32_t ranks_of_host,
                      const CollectivePace& pace)
      : machine_(machine), ranks_(ranks), ranks_of_host_(ranks_of_host), pace_(pace) {}

  std::string_view name() const override { return "virtual"; }
  Rank rank() const override { return Rank{0}; }
  std::uint32_t size() const override { return ranks_; }
  Rank host_rank() const override { return Rank{0}; }
  std::uint32_t host_size() const override { return ranks_of_host_; }
  Bytes staging_bytes() const override { return {}; }
  // Pre: a VirtualDevice.
  void attach(Device& device) override;
  void all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) override;
  void reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) override;
  void broadcast(StreamId stream, void* data, Bytes size, Rank root) override;
  void all_reduce(StreamId stream, void* data, std::uint64_t count_elems, DType dtype) override;
  std::unique_ptr<Communicator> split(std::uint32_t color, std::uint32_t key) override;
  std::vector<std::byte> exchange(std::span<const std::byte> mine) override;
  void set_timeout(std::chrono::milliseconds) override {}
  std::optional<Error> failure() const override { return std::nullopt; }
  void abort(std::string_view) override {}

 private:
  void take(StreamId stream, double received_bytes);

  VirtualMachine& machine_;
  const std::uint32_t ranks_;
  const std::uint32_t ranks_of_host_;
  const CollectivePace pace_;
  VirtualDevice* device_ = nullptr;
};

}  // namespace strata
