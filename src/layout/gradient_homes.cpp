#include "layout/gradient_homes.hpp"

namespace strata {
namespace {

// Fractions are tried in these steps: finer ones would move less than a tile of most models.
constexpr int kSteps = 1 << 12;

bool device_saves_crossings(const StateTable& table, const Config& config) {
  if (config.placement.optimizer.device == 1) return true;
  return table.accumulates &&
         size_of(DType::fp32) < config.engine.max_micro_batches * size_of(table.wire);
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
  // The rest of the gradients is in files; the tier that is filled is the one to look at.
  const auto homes = [](int device, int host) {
    constexpr double kOne = kSteps;
    return TierFractions{device / kOne, host / kOne, (kSteps - device - host) / kOne};
  };
  const auto fits = [&](Tier tier, const TierFractions& grad) {
    placement.grad = grad;
    const MemoryPlan plan = plan_memory(
        layout, table,
        make_placement(layout, table, placement, config.engine.tile / size_of(DType::fp32)), config,
        budgets, extras);
    return plan.total(tier) <= plan.budgets[static_cast<std::size_t>(tier)];
  };
  int device = 0;
  if (device_saves_crossings(table, config)) {
    device = largest_step(kSteps,
                          [&](int step) { return fits(Tier::device, homes(step, kSteps - step)); });
  }
  const int left = kSteps - device;
  int host = left;
  if (config.budgets.nvme > Bytes{} && !config.nvme.directories.empty()) {
    host = largest_step(left, [&](int step) { return fits(Tier::host, homes(device, step)); });
    if (!fits(Tier::host, homes(device, host))) host = left;
  }
  placement.grad = homes(device, host);
  return placement;
}

}  // namespace strata
