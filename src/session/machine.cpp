// The simulated machine: virtual ports at given rates.
#include "strata/machine.hpp"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "virtual/virtual_communicator.hpp"
#include "virtual/virtual_device.hpp"
#include "virtual/virtual_disk.hpp"
#include "virtual/virtual_machine.hpp"

namespace strata {

struct SimulatedMachine::State {
  MachineRates rates;
  SimulatedRanks ranks;
  VirtualMachine machine;
  // Of the session.
  VirtualDevice* device = nullptr;
  VirtualDisk* disk = nullptr;

  State(const MachineRates& what, SimulatedRanks how_many)
      : rates(what),
        ranks(how_many),
        machine(rates.workers, {.checked_bytes_per_second = rates.checksum_bytes_per_s,
                                .updated_elems_per_second = rates.update_elems_per_s,
                                .summed_elems_per_second = rates.sum_elems_per_s}) {}
};

SimulatedMachine::SimulatedMachine(const MachineRates& rates, SimulatedRanks ranks)
    : state_(std::make_unique<State>(rates, ranks)) {}
SimulatedMachine::~SimulatedMachine() = default;
SimulatedMachine::SimulatedMachine(SimulatedMachine&&) noexcept = default;

Backends SimulatedMachine::backends(const Config& config) {
  const MachineRates& rates = state_->rates;
  VirtualMachine& machine = state_->machine;
  const auto [ranks, ranks_per_node] = state_->ranks;
  const std::uint64_t sharers =
      config.budgets.scope == Config::BudgetScope::per_node ? ranks_per_node : 1;
  auto device = std::make_unique<VirtualDevice>(
      machine,
      VirtualDevice::Options{.arena = config.budgets.device / sharers - config.outside.device,
                             .host_to_device = {rates.host_to_device_bytes_per_s},
                             .device_to_host = {rates.device_to_host_bytes_per_s},
                             .device_to_device = {rates.device_bytes_per_s},
                             .elements_per_second = rates.device_update_elems_per_s});
  std::vector<DiskPace> paces;
  for (const DiskRates& disk : rates.disks) {
    paces.push_back({.read_bytes_per_second = disk.read_bytes_per_s,
                     .write_bytes_per_second = disk.write_bytes_per_s,
                     .half_duplex = disk.half_duplex,
                     .request_latency_seconds = disk.latency_s});
  }
  auto disk = std::make_unique<VirtualDisk>(machine, paces);
  state_->device = device.get();
  state_->disk = disk.get();
  return {.communicator = std::make_unique<VirtualCommunicator>(
              machine, ranks, ranks_per_node,
              CollectivePace{.bytes_per_second = rates.collective_bytes_per_s,
                             .latency_seconds = rates.collective_latency_s,
                             .exchange_seconds = rates.exchange_s}),
          .device = std::move(device),
          .block_io = std::move(disk),
          .simulation = &machine};
}

void SimulatedMachine::compute(StreamId stream, double seconds) {
  STRATA_ASSERT(state_->device != nullptr, "compute() before backends()");
  state_->device->launch_for(stream, std::chrono::nanoseconds(std::llround(seconds * 1e9)));
}

double SimulatedMachine::disk_busy_seconds() const {
  return state_->disk == nullptr ? 0 : state_->disk->occupied_seconds();
}

const Clock& SimulatedMachine::clock() const { return state_->machine; }

}  // namespace strata
