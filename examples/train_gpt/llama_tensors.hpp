// What the tensors of units() are called in the files of LlamaForCausalLM. Shapes are the same
// there, (out, in), and so is the pairing of rotary positions: rows are not permuted. Pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model_config.hpp"

namespace train_gpt {

struct LlamaTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
};

// Of all units, in the order of units() and of their tensors.
std::vector<LlamaTensor> llama_tensors(const GptConfig& config);

// Adds to the result of an attention or feed-forward projection, of which train_gpt has none: a
// model whose biases are all 0 is the same without.
bool is_llama_bias(std::string_view name);

// Not weights: what old versions stored of the rotary positions.
bool is_llama_buffer(std::string_view name);

}  // namespace train_gpt
