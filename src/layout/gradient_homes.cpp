#include "layout/gradient_homes.hpp"

#include <algorithm>

namespace strata {
namespace {

// Fractions are tried in these steps: finer ones would move less than a tile of most models.
constexpr int kSteps = 1 << 12;

// The part of the gradients that is best on the device.
double wanted_on_device(const StateTable& table, const Config& config) {
  const bool accumulating_saves =
      table.accumulates &&
      size_of(DType::fp32) < config.engine.max_micro_batches * size_of(table.wire);
  if (accumulating_saves) return 1;
  // Where an update runs on the device, its gradient never has to leave.
  const Config::Placement& homes = config.placement;
  const bool has_optimizer_states = table.has_masters() || moments_of(table.rule) > 0;
  return has_optimizer_states ? std::min(homes.param.device, homes.optimizer.device)
                              : homes.param.device;
}

// The largest step in [0, most] for which `fits` holds; it holds below whatever it holds for.
template <class Fits>
int largest_step(int most, Fits&& fits) {
  if (fits(most)) return most;
  int low = 0;
  int high = most;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

Config::Placement with_gradient_homes(const Layout& layout, const StateTable& table,
                                      const Config& config,
                                      const std::array<Bytes, kTierCount>& budgets,
                                      const MemoryExtras& extras) {
  Config::Placement placement = config.placement;
  if (!placement.grad.automatic) return placement;
  const auto plan_with = [&](const TierFractions& grad) {
    placement.grad = grad;
    const std::uint64_t tile_elems = config.engine.tile / size_of(DType::fp32);
    return plan_memory(layout, table, make_placement(layout, table, placement, tile_elems), config,
                       budgets, extras);
  };
  const auto fits = [&](Tier tier, const TierFractions& grad) {
    const MemoryPlan plan = plan_with(grad);
    return plan.total(tier) <= plan.budgets[static_cast<std::size_t>(tier)];
  };
  const bool has_files = config.budgets.nvme > Bytes{} && !config.nvme.directories.empty();
  constexpr double kOne = kSteps;
  // The device's part of `wanted` that fits, then the host's, the rest in files.
  const auto fill = [&](double wanted) {
    const auto on_device = [&](int step) {
      const double device = wanted * step / kOne;
      return TierFractions{device, 1 - device, 0};
    };
    TierFractions grad = on_device(
        largest_step(kSteps, [&](int step) { return fits(Tier::device, on_device(step)); }));
    if (!has_files) return grad;
    const double left = grad.host;
    const auto on_host = [&](int step) {
      return TierFractions{grad.device, left * step / kOne, left - left * step / kOne};
    };
    return on_host(largest_step(kSteps, [&](int step) { return fits(Tier::host, on_host(step)); }));
  };
  for (const double wanted : {wanted_on_device(table, config), 0.0, 1.0}) {
    const TierFractions grad = fill(wanted);
    if (fits(Tier::device, grad) && fits(Tier::host, grad) && fits(Tier::nvme, grad)) {
      placement.grad = grad;
      return placement;
    }
  }
  placement.grad = {0, 1, 0};
  return placement;
}

}  // namespace strata
