// The bytes that a placement must move per parameter and optimizer step, at least: the table of
// docs/architecture.md ("Bytes that must move") evaluated for any mix of homes. Pure.
#pragma once

#include "layout/layout.hpp"
#include "layout/placement.hpp"
#include "layout/state_table.hpp"

namespace strata {

struct ByteFloor {
  double nvme_read = 0;
  double nvme_written = 0;
  double host_to_device = 0;
  double device_to_host = 0;
};

// Totals in bytes for one rank and step: every unit gathered twice per micro-batch (forward and
// backward) and reduced once per micro-batch, every trainable tile updated once.
ByteFloor byte_floor(const Layout& layout, const StateTable& table, const Placement& placement,
                     std::uint32_t micro_batches);

}  // namespace strata
