// What a machine can do, in figures, and a machine made of such figures: a session opened on a
// SimulatedMachine makes every decision that it would make on a real one, while nothing is computed
// and time is arithmetic. It tells how long a step takes, what it waits for and what memory it
// uses, for machines that one does not have, some thousand times faster than real time.
//
//   SimulatedMachine machine(rates, {.ranks = 8, .ranks_per_node = 8});
//   Session session = Session::open(model, config, machine.backends(config));
//   ... begin_step, gather, machine.compute(stream, seconds), reduce, end ...
//   double now = 1e-9 * machine.clock().now_ns();
//
// On it gathers and gradients are addresses that nobody can read, functions that are launched are
// not called, initialize() sets nothing, and read() and weights_hash() throw Error(not_supported).
// This process is rank 0, and the other ranks do the same at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strata/clock.hpp"
#include "strata/config.hpp"
#include "strata/session.hpp"
#include "strata/types.hpp"

namespace strata {

struct DiskRates {
  double read_bytes_per_s = 2e9;
  double write_bytes_per_s = 1.5e9;
  bool half_duplex = true;    // reads and writes share the time; false: each has its own
  double latency_s = 100e-6;  // of a request, beside others
};

// Of one rank, with what it shares divided by those that share it. A rate of 0: no time.
struct MachineRates {
  std::vector<DiskRates> disks = {DiskRates{}};  // by directory of config.nvme.directories
  double host_to_device_bytes_per_s = 0;
  double device_to_host_bytes_per_s = 0;
  double device_bytes_per_s = 0;         // copies on the device
  double device_update_elems_per_s = 0;  // sums, updates and conversions on the device
  unsigned workers = 1;                  // the three that follow are of one worker
  double checksum_bytes_per_s = 0;
  double update_elems_per_s = 0;
  double sum_elems_per_s = 0;
  double collective_bytes_per_s = 0;  // that a rank receives
  double collective_latency_s = 0;
  double exchange_s = 0;  // of the ranks agreeing on the host, once
};

struct SimulatedRanks {
  std::uint32_t ranks = 1;
  std::uint32_t ranks_per_node = 1;
};

class SimulatedMachine {
 public:
  explicit SimulatedMachine(const MachineRates& rates, SimulatedRanks ranks = {});
  ~SimulatedMachine();
  SimulatedMachine(SimulatedMachine&&) noexcept;
  SimulatedMachine& operator=(SimulatedMachine&&) = delete;

  // For one session, which the machine outlives. Its device has the budget of `config`.
  Backends backends(const Config& config);

  // Enqueues work that takes `seconds` of the stream's time. Pre: the session is open, as for
  // disk_busy_seconds().
  void compute(StreamId stream, double seconds);

  // Seconds for which the disks served requests, over all of them.
  double disk_busy_seconds() const;

  const Clock& clock() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata
