#include "layout/memory_floor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "layout/activation_plan.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata {

Bytes MemoryPlan::total(Tier tier) const {
  Bytes sum;
  for (const MemoryLine& line : lines) {
    if (line.tier == tier) sum += line.size;
  }
  return sum;
}

Bytes MemoryPlan::total(Tier tier, MemoryPurpose purpose) const {
  Bytes sum;
  for (const MemoryLine& line : lines) {
    if (line.tier == tier && line.purpose == purpose) sum += line.size;
  }
  return sum;
}

bool MemoryPlan::fits() const {
  return std::ranges::all_of(std::array{Tier::device, Tier::host, Tier::nvme}, [&](Tier tier) {
    return total(tier) <= budgets[static_cast<std::size_t>(tier)];
  });
}

void MemoryPlan::require_fit() const {
  std::string text;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const Bytes budget = budgets[static_cast<std::size_t>(tier)];
    if (total(tier) <= budget) continue;
    text += fmt::format(
        "{}{} budget {} ({} bytes) is too small; the smallest that works is {} ({} bytes):",
        text.empty() ? "" : "; ", name_of(tier), format_bytes(budget), budget.value,
        format_bytes(total(tier)), total(tier).value);
    for (const MemoryLine& line : lines) {
      if (line.tier == tier) text += fmt::format(" {} {},", line.what, format_bytes(line.size));
    }
    text.pop_back();
  }
  if (!text.empty()) throw Error(ErrorCode::budget_exceeded, text);
}

std::string MemoryPlan::to_text() const {
  std::string text;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    text += fmt::format("{:<8}{:>12} of {:>12}\n", name_of(tier), format_bytes(total(tier)),
                        format_bytes(budgets[static_cast<std::size_t>(tier)]));
    for (const MemoryLine& line : lines) {
      if (line.tier == tier)
        text += fmt::format("  {:>12}  {}\n", format_bytes(line.size), line.what);
    }
  }
  return text;
}

bool updates_on_device(const Tile& tile, const StateTable& table) {
  return std::all_of(tile.homes.begin(), tile.homes.begin() + table.size(),
                     [](Tier tier) { return tier == Tier::device; });
}

std::uint32_t update_slabs(const Tile& tile, const StateTable& table) {
  if (updates_on_device(tile, table)) return 0;
  return static_cast<std::uint32_t>(std::count_if(tile.homes.begin(),
                                                  tile.homes.begin() + table.size(),
                                                  [](Tier tier) { return tier != Tier::host; }));
}

std::uint32_t gradient_slabs(const Tile& tile, const StateTable& table) {
  switch (tile.home(kGradKind)) {
    case Tier::device: return 0;
    case Tier::host: return table.accumulates ? 1 : 0;
    case Tier::nvme: return table.accumulates ? 2 : 1;
  }
  return 0;
}

namespace {

Bytes unit_bytes(const Layout& layout, UnitId unit, DType dtype, bool trainable_only) {
  Bytes sum;
  for (const std::uint32_t s : layout.segments_of(unit)) {
    const Segment& segment = layout.segments[s];
    if (trainable_only && !segment.trainable) continue;
    sum += round_up(segment.shard_elems * layout.group_size * size_of(dtype), kPieceRounding);
  }
  return sum;
}

template <class Size>
std::pair<Bytes, std::string> largest_unit(const Layout& layout, Size&& size_of_unit) {
  std::pair<Bytes, std::string> largest;
  for (std::uint32_t u = 0; u < layout.units.size(); ++u) {
    const Bytes size = size_of_unit(UnitId{u});
    if (size > largest.first) largest = {size, layout.units[u].name};
  }
  return largest;
}

std::pair<Bytes, std::string> largest_gathered(const Layout& layout, const StateTable& table) {
  return largest_unit(layout, [&](UnitId unit) { return gathered_bytes(layout, table, unit); });
}

std::pair<Bytes, std::string> largest_gradient(const Layout& layout, const StateTable& table) {
  return largest_unit(layout, [&](UnitId unit) { return gradient_bytes(layout, table, unit); });
}

// Calls `visit(segment, tile)` for every tile.
template <class Visit>
void for_each_tile(const Layout& layout, const Placement& placement, Visit&& visit) {
  for (std::size_t s = 0; s < layout.segments.size(); ++s) {
    for (const Tile& tile : placement.tiles[s]) visit(layout.segments[s], tile);
  }
}

// As ExtentStore::add_spares() makes them: for each size at most one for each extent of that size.
Bytes spare_slot_bytes(const Layout& layout, const StateTable& table, const Placement& placement,
                       std::uint32_t most_per_size) {
  std::map<Bytes, std::uint32_t> extents;
  for_each_tile(layout, placement, [&](const Segment& segment, const Tile& tile) {
    for (std::uint32_t k = 0; k < Placement::kinds_of(segment, table); ++k) {
      if (tile.homes[k] == Tier::nvme) ++extents[rest_bytes(tile, KindId{k}, table)];
    }
  });
  Bytes sum;
  for (const auto& [size, count] : extents) sum += size * std::min(count, most_per_size);
  return sum;
}

}  // namespace

Bytes gathered_bytes(const Layout& layout, const StateTable& table, UnitId unit) {
  return unit_bytes(layout, unit, table[kParamKind].dtype, false);
}

Bytes gradient_bytes(const Layout& layout, const StateTable& table, UnitId unit) {
  return unit_bytes(layout, unit, table.wire, true);
}

Bytes rest_bytes(const Tile& tile, KindId kind, const StateTable& table) {
  const Bytes size = tile.count_elems * table.bytes_per_elem(kind);
  return round_up(size, tile.home(kind) == Tier::nvme ? kExtentRounding : kPieceRounding);
}

Bytes gradient_sums_bytes(const Tile& tile) {
  return blocks_of(tile) * Bytes{sizeof(double)} + Bytes{sizeof(double)};
}

Bytes all_gradient_sums_bytes(const Layout& layout, const Placement& placement, Tier tier) {
  Bytes sum;
  for_each_tile(layout, placement, [&](const Segment& segment, const Tile& tile) {
    if (!segment.trainable) return;
    if (tier == Tier::device && tile.home(kGradKind) != Tier::device) return;
    sum += round_up(gradient_sums_bytes(tile), kPieceRounding);
  });
  return sum;
}

StagingPlan plan_staging(const Layout& layout, const StateTable& table, const Placement& placement,
                         std::uint64_t tile_elems) {
  StagingPlan plan{.slab = tile_elems * size_of(DType::fp32), .checkpoint = kTilesInFlight};
  for_each_tile(layout, placement, [&](const Segment& segment, const Tile& tile) {
    if (tile.home(kParamKind) == Tier::nvme) plan.gather = kTilesInFlight;
    if (!segment.trainable) return;
    plan.gradient = std::max(plan.gradient, kTilesInFlight * gradient_slabs(tile, table));
    plan.update = std::max(plan.update, kTilesInFlight * update_slabs(tile, table));
  });
  return plan;
}

LookAheadBuffers affordable_look_ahead(const Layout& layout, const StateTable& table,
                                       const Config& config, const MemoryPlan& floor) {
  const Bytes budget = floor.budgets[static_cast<std::size_t>(Tier::device)];
  const Bytes used = floor.total(Tier::device);
  if (config.engine.look_ahead == 0 || used >= budget) return {};
  const Bytes room = (budget - used) / 2;
  const Bytes gather = largest_gathered(layout, table).first;
  const Bytes gradient = largest_gradient(layout, table).first;
  if (gradient > room) return {};
  const Bytes left = room - gradient;
  const std::uint64_t fit = gather == Bytes{} ? 0 : left / gather;
  return {
      .gathers = static_cast<std::uint32_t>(std::min<std::uint64_t>(fit, config.engine.look_ahead)),
      .gradients = gradient == Bytes{} ? 0U : 1U};
}

void add_look_ahead(MemoryPlan& plan, const Layout& layout, const StateTable& table,
                    const LookAheadBuffers& buffers) {
  const auto enlarge = [&](MemoryPurpose purpose, std::uint32_t more, Bytes size) {
    if (more == 0) return;
    const auto line = std::ranges::find(plan.lines, purpose, &MemoryLine::purpose);
    line->what += fmt::format(" and {} ahead", more);
    line->size += more * size;
  };
  enlarge(MemoryPurpose::gathers, buffers.gathers, largest_gathered(layout, table).first);
  enlarge(MemoryPurpose::gradient_buffer, buffers.gradients, largest_gradient(layout, table).first);
}

MemoryPlan plan_memory(const Layout& layout, const StateTable& table, const Placement& placement,
                       const Config& config, const std::array<Bytes, kTierCount>& budgets,
                       const MemoryExtras& extras) {
  MemoryPlan plan;
  std::ranges::copy(budgets, plan.budgets);
  const auto add = [&](Tier tier, MemoryPurpose purpose, std::string what, Bytes size) {
    if (size > Bytes{}) plan.lines.push_back({tier, purpose, std::move(what), size});
  };
  for (std::uint32_t k = 0; k < table.size(); ++k) {
    std::array<Bytes, kTierCount> at_rest{};
    for_each_tile(layout, placement, [&](const Segment& segment, const Tile& tile) {
      if (k >= Placement::kinds_of(segment, table)) return;
      at_rest[static_cast<std::size_t>(tile.homes[k])] += rest_bytes(tile, KindId{k}, table);
    });
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      add(tier, MemoryPurpose::at_rest, table.kinds[k].name + " at rest",
          at_rest[static_cast<std::size_t>(tier)]);
    }
  }
  add(Tier::nvme, MemoryPurpose::spare_slots, "spare slots",
      spare_slot_bytes(layout, table, placement, config.nvme.spare_slots));
  const auto [gather, gather_unit] = largest_gathered(layout, table);
  const auto [gradient, gradient_unit] = largest_gradient(layout, table);
  add(Tier::device, MemoryPurpose::gathers,
      fmt::format("gathers: {} x {}", config.engine.max_live_units, gather_unit),
      config.engine.max_live_units * gather);
  add(Tier::device, MemoryPurpose::gradient_buffer,
      fmt::format("gradient buffer: {}", gradient_unit), gradient);
  add(Tier::device, MemoryPurpose::gradient_sums, "gradient sums",
      all_gradient_sums_bytes(layout, placement, Tier::device));
  add(Tier::device, MemoryPurpose::scratch, "scratch",
      round_up(extras.device_scratch, kPieceRounding));
  add(Tier::device, MemoryPurpose::outside, "outside", config.outside.device);

  const StagingPlan staging =
      plan_staging(layout, table, placement, config.engine.tile / size_of(DType::fp32));
  add(Tier::host, MemoryPurpose::staging_gather, "staging: gather", staging.gather * staging.slab);
  add(Tier::host, MemoryPurpose::staging_gradient, "staging: gradient",
      staging.gradient * staging.slab);
  add(Tier::host, MemoryPurpose::staging_update, "staging: update", staging.update * staging.slab);
  add(Tier::host, MemoryPurpose::staging_checkpoint, "staging: checkpoint",
      staging.checkpoint * staging.slab);
  add_activations(plan, plan_activations(extras.activations, config.placement.activation),
                  staging.slab);
  add(Tier::host, MemoryPurpose::gradient_sums, "gradient sums",
      all_gradient_sums_bytes(layout, placement, Tier::host));
  add(Tier::host, MemoryPurpose::communicator, "communicator windows", extras.communicator_staging);
  add(Tier::host, MemoryPurpose::scratch, "scratch", round_up(extras.host_scratch, kPieceRounding));
  add(Tier::host, MemoryPurpose::outside, "outside", config.outside.host);
  return plan;
}

}  // namespace strata
