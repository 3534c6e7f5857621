#include "llama_tensors.hpp"

#include <fmt/format.h>

#include <utility>

#include "strata/error.hpp"

namespace train_gpt {
namespace {

// Of units() and, behind "model." or "model.layers.N.", of the files.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"embedding", "embed_tokens.weight"},
    {"attn_norm", "input_layernorm.weight"},
    {"wq", "self_attn.q_proj.weight"},
    {"wk", "self_attn.k_proj.weight"},
    {"wv", "self_attn.v_proj.weight"},
    {"wo", "self_attn.o_proj.weight"},
    {"ffn_norm", "post_attention_layernorm.weight"},
    {"w_gate", "mlp.gate_proj.weight"},
    {"w_up", "mlp.up_proj.weight"},
    {"w_down", "mlp.down_proj.weight"},
    {"final_norm", "norm.weight"},
};

std::string llama_name(std::string_view unit, std::string_view tensor) {
  constexpr std::string_view kBlock = "block.";
  if (tensor == "lm_head") return "lm_head.weight";
  for (const auto& [ours, theirs] : kNames) {
    if (ours != tensor) continue;
    if (!unit.starts_with(kBlock)) return fmt::format("model.{}", theirs);
    return fmt::format("model.layers.{}.{}", unit.substr(kBlock.size()), theirs);
  }
  throw strata::Error(strata::ErrorCode::invalid_argument,
                      fmt::format("tensor {} of unit {} has no name in a Llama", tensor, unit));
}

}  // namespace

std::vector<LlamaTensor> llama_tensors(const GptConfig& config) {
  std::vector<LlamaTensor> tensors;
  for (const strata::UnitSpec& unit : units(config)) {
    for (const strata::TensorSpec& tensor : unit.tensors) {
      tensors.push_back({llama_name(unit.name, tensor.name), tensor.shape});
    }
  }
  return tensors;
}

bool is_llama_bias(std::string_view name) {
  return name.starts_with("model.layers.") && name.ends_with("_proj.bias");
}

bool is_llama_buffer(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace train_gpt
