// Reads the description of a model, for tools that reason about a model without its trainer:
//   {"units": [{"name": "A", "tensors": [{"name": "w", "shape": [5, 3]}]}]}
// A tensor may have "trainable": false and "group": n, a unit "reduces_per_micro_batch": n. Reading
// is strict: a key that is unknown, missing or repeated and a wrong type are errors.
#pragma once

#include <string>
#include <string_view>

#include "strata/model.hpp"

namespace strata::tool {

// Throws Error(config) with "<path>: ..." in one line. Blocks: on the file system.
Model read_model_file(const std::string& path);

// The same for text in memory; `source_name` stands for the path in messages.
Model parse_model(std::string_view text, std::string_view source_name);

}  // namespace strata::tool
