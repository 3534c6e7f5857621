// Values of configuration keys as JSON, for writing files, messages and the documentation.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "session/config_keys.hpp"

namespace strata::config {

// Sizes become exact strings ("1536KiB"); a shard that rests on one tier becomes its name.
nlohmann::ordered_json json_of(const Field& field);

}  // namespace strata::config
