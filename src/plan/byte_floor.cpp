#include "plan/byte_floor.hpp"

#include "layout/memory_floor.hpp"

namespace strata {
namespace {

// What an update must move: every kind that it reads comes to where it runs, every kind that it
// writes goes back.
void add_update(ByteFloor& floor, const Tile& tile, const StateTable& table, double elems) {
  if (updates_on_device(tile, table)) return;
  for (std::uint32_t k = 0; k < table.size(); ++k) {
    const double bytes = elems * static_cast<double>(table.bytes_per_elem(KindId{k}).value);
    const bool read = KindId{k} != kParamKind || table.master == kParamKind;
    const bool written = KindId{k} != kGradKind;
    if (tile.homes[k] == Tier::nvme) {
      if (read) floor.nvme_read += bytes;
      if (written) floor.nvme_written += bytes;
    } else if (tile.homes[k] == Tier::device) {
      if (read) floor.device_to_host += bytes;
      if (written) floor.host_to_device += bytes;
    }
  }
}

// What the gradients of g micro-batches must move to their home.
void add_gradients(ByteFloor& floor, const Tile& tile, const StateTable& table, double elems,
                   double g) {
  if (tile.home(kGradKind) == Tier::device) return;
  floor.device_to_host += g * elems * static_cast<double>(size_of(table.wire).value);
  if (tile.home(kGradKind) != Tier::nvme) return;
  const double rest = elems * static_cast<double>(table.bytes_per_elem(kGradKind).value);
  floor.nvme_written += g * rest;
  floor.nvme_read += (g - 1) * rest;
}

void add_gathers(ByteFloor& floor, const Tile& tile, const StateTable& table, double elems,
                 double g) {
  const double bytes = elems * static_cast<double>(table.bytes_per_elem(kParamKind).value);
  if (tile.home(kParamKind) != Tier::device) floor.host_to_device += 2 * g * bytes;
  if (tile.home(kParamKind) == Tier::nvme) floor.nvme_read += 2 * g * bytes;
}

}  // namespace

ByteFloor byte_floor(const Layout& layout, const StateTable& table, const Placement& placement,
                     std::uint32_t micro_batches) {
  ByteFloor floor;
  const double g = micro_batches;
  for (std::size_t s = 0; s < layout.segments.size(); ++s) {
    for (const Tile& tile : placement.tiles[s]) {
      const auto elems = static_cast<double>(tile.count_elems);
      add_gathers(floor, tile, table, elems, g);
      if (!layout.segments[s].trainable) continue;
      add_gradients(floor, tile, table, elems, g);
      add_update(floor, tile, table, elems);
    }
  }
  return floor;
}

}  // namespace strata
