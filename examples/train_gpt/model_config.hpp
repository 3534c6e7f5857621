// The shape of the Llama-style decoder that train_gpt trains: presets, the units and tensors that
// a trainer declares to Strata, and what the model costs in parameters and FLOPs. Pure values and
// functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "strata/model.hpp"

namespace train_gpt {

struct GptConfig {
  std::uint32_t layers = 0;
  std::uint32_t hidden = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;  // grouped-query attention when smaller than heads
  std::uint32_t ffn = 0;
  std::uint32_t vocab = 0;
  std::uint32_t sequence = 0;
  bool tied_embeddings = true;  // the token embedding is also the output projection
  float rope_theta = 10000;
  float norm_eps = 1e-5F;

  std::uint32_t head_dim() const { return hidden / heads; }
  std::uint32_t kv_width() const { return kv_heads * head_dim(); }
};

// Names that preset() knows, smallest model first.
std::vector<std::string_view> preset_names();

// Throws strata::Error(config) listing the names when `name` is none of them.
GptConfig preset(std::string_view name);

// Throws strata::Error(config) naming the first value that no model can have.
void validate(const GptConfig& config);

// Parameter groups of the tensors: matrices decay, norms do not.
inline constexpr std::uint32_t kDecayGroup = 0;
inline constexpr std::uint32_t kNormGroup = 1;

// What a trainer adds to a strata::Model, in the order of use in a forward pass: "embed",
// "block.0", ..., "head". Matrices are (out, in). With tied embeddings the head reads the
// embedding of unit "embed", which is then reduced twice per micro-batch, and owns only its norm.
std::vector<strata::UnitSpec> units(const GptConfig& config);

std::uint64_t parameter_count(const GptConfig& config);

enum class Pass { forward, train, train_with_recompute };

// Matrix products only, two FLOPs per multiply-add: per token 2P forward, 6P with the backward
// pass, 8P when each block's forward is recomputed (the head is not), where P counts the matrices
// that a token is multiplied with. Attention adds the two products over the causal half of the
// scores (Chowdhery et al., "PaLM", appendix B, halved for causality).
double flops_per_token(const GptConfig& config, Pass pass);

}  // namespace train_gpt
