// The trained weights as a directory that transformers opens: config.json of a LlamaForCausalLM and
// its tensors as safetensors. Every rank writes the elements that it holds.
#pragma once

#include <string>

#include "llama_config.hpp"
#include "strata/session.hpp"

namespace train_gpt {

struct ExportOptions {
  std::string directory;
  LlamaConfig config;
  strata::DType dtype = strata::DType::fp32;
  strata::Bytes most_file_bytes;
};

// Writes the masters where the session has any, else the parameters. Files have their names when
// all of them are whole. Not inside a step. Collective; all ranks see one file system. Returns the
// number of files. Throws strata::Error: config, no_space, io; the first rank removes what was
// written. Blocks.
std::size_t export_weights(strata::Session& session, const ExportOptions& options);

}  // namespace train_gpt
