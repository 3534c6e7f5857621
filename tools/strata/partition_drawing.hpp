// Draws a partition: one row per segment, where the tensors of the segment stand end to end in
// the colours of the ranks that hold them, above the shards; padding is hatched. Small tensors are
// drawn as matrices too, each element a cell.
#pragma once

#include <string>

#include "partition.hpp"

namespace strata::tool {

// `caption` names the model.
std::string draw_partition(const Partition& partition, const std::string& caption);

}  // namespace strata::tool
