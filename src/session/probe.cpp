// The machine's rates, as the ranks find them together.
#include <algorithm>
#include <vector>

#include "session/guard.hpp"
#include "session/session_impl.hpp"
#include "strata/machine.hpp"

namespace strata {
namespace {

// Reads and writes at once that move less than this of what they move one after the other share the
// disk's time.
constexpr double kFullDuplex = 0.75;
constexpr int kExchanges = 20;

}  // namespace

MachineRates SessionImpl::probe() {
  return guarded([&] {
    require_step(false, "probe");
    if (simulation_ != nullptr) {
      throw Error(ErrorCode::not_supported, "a simulation has no machine to measure");
    }
    if (std::ranges::find(initialized_, true) != initialized_.end()) {
      throw Error(ErrorCode::invalid_argument,
                  "probe() after initialize(): it overwrites states, so call it first");
    }
    const bool alone = communicator_->size() == 1;
    const std::byte nothing{0};
    const auto meet = [&] {
      if (!alone) communicator_->exchange({&nothing, 1});
    };
    const UpdateCoefficients coefficients = coefficients_of(
        geometry_.table.rule, {.learning_rate = config_.optimizer.learning_rate}, 1, 1);
    const TileRuns whole_tile = [&](std::uint32_t, const Tile& tile, std::vector<UpdateRun>& runs) {
      runs.push_back({0, tile.count_elems, coefficients});
    };
    const MachineProbe found = engine_->probe(workers_, whole_tile, meet);
    MachineRates rates;
    if (found.disk_read_bytes_per_s > 0) {
      rates.disks = {{.read_bytes_per_s = found.disk_read_bytes_per_s,
                      .write_bytes_per_s = found.disk_write_bytes_per_s,
                      .half_duplex = found.disk_mix < kFullDuplex}};
    }
    rates.host_to_device_bytes_per_s = found.host_to_device_bytes_per_s;
    rates.device_to_host_bytes_per_s = found.device_to_host_bytes_per_s;
    rates.device_update_elems_per_s = found.device_update_elems_per_s;
    rates.workers = workers_;
    rates.checksum_bytes_per_s = found.work.checked_bytes_per_s;
    rates.update_elems_per_s = found.work.updated_elems_per_s;
    rates.sum_elems_per_s = found.work.summed_elems_per_s;
    rates.collective_bytes_per_s = found.gather_bytes_per_s;
    if (!alone) {
      const std::int64_t begin_ns = clock_.now_ns();
      for (int i = 0; i < kExchanges; ++i) meet();
      rates.exchange_s = static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9 / kExchanges;
    }
    return rates;
  });
}

}  // namespace strata
