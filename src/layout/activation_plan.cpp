#include "layout/activation_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strata/bytes.hpp"

namespace strata {

std::uint32_t ActivationPlan::count(Tier tier) const {
  return static_cast<std::uint32_t>(std::ranges::count(homes, tier));
}

ActivationPlan plan_activations(const ActivationNeeds& needs, const TierFractions& homes) {
  ActivationPlan plan{.size = needs.size};
  const auto share = [&](double fraction) {
    return static_cast<std::uint32_t>(std::llround(fraction * needs.count));
  };
  const std::uint32_t on_nvme = share(homes.nvme);
  const std::uint32_t off_device = std::max(on_nvme, share(homes.nvme + homes.host));
  for (std::uint32_t i = 0; i < needs.count; ++i) {
    plan.homes.push_back(i < on_nvme ? Tier::nvme : i < off_device ? Tier::host : Tier::device);
  }
  if (off_device > 0) plan.slots = needs.live + kActivationsAhead + kActivationsLeaving;
  if (on_nvme > 0) plan.staging = kTilesInFlight;
  return plan;
}

Bytes activation_file_bytes(const ActivationPlan& plan, Bytes slab) {
  const std::uint64_t whole = plan.size.value / slab.value;
  const Bytes last = plan.size - whole * slab;
  return whole * slab + round_up(last, kExtentRounding);
}

void add_activations(MemoryPlan& plan, const ActivationPlan& activations, Bytes slab) {
  const auto add = [&](Tier tier, MemoryPurpose purpose, std::string_view what, std::uint32_t count,
                       Bytes size) {
    if (count == 0) return;
    plan.lines.push_back(
        {tier, purpose, fmt::format("{}: {} x {}", what, count, format_bytes(size)), count * size});
  };
  const Bytes size = activations.piece();
  const auto at_rest = [&](Tier tier, Bytes each) {
    add(tier, MemoryPurpose::activations, "activations", activations.count(tier), each);
  };
  at_rest(Tier::device, size);
  add(Tier::device, MemoryPurpose::activation_slots, "activation slots", activations.slots, size);
  at_rest(Tier::host, size);
  add(Tier::host, MemoryPurpose::staging_activation, "staging: activation", activations.staging,
      slab);
  at_rest(Tier::nvme, activation_file_bytes(activations, slab));
}

}  // namespace strata
