// config.json of Hugging Face's transformers: what train_gpt's decoder is called there, and which
// models of theirs it is. Read strictly where a field changes the math; fields that only tell how a
// model was trained or how text is made of it are passed over. Values; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "model_config.hpp"
#include "strata/types.hpp"

namespace train_gpt {

struct LlamaConfig {
  GptConfig model;  // with sequence = max_positions
  std::uint32_t max_positions = 0;
};

// Of DIRECTORY/config.json, of a model of type llama or qwen2. Throws strata::Error(config) that
// names the file and the field when the file cannot be read or tells of another model than
// train_gpt's. Blocks.
LlamaConfig read_llama_config(const std::string& directory);

// The text of config.json for a LlamaForCausalLM with weights of `dtype`.
std::string llama_config_json(const LlamaConfig& config, strata::DType dtype);

}  // namespace train_gpt
