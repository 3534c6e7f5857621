#include "model_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>

#include "strata/error.hpp"

namespace train_gpt {
namespace {

struct Preset {
  std::string_view name;
  GptConfig config;
};

constexpr Preset kPresets[] = {
    {"tiny",
     {.layers = 4,
      .hidden = 128,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 384,
      .vocab = 256,
      .sequence = 64}},
    {"small",
     {.layers = 6,
      .hidden = 384,
      .heads = 6,
      .kv_heads = 2,
      .ffn = 1024,
      .vocab = 256,
      .sequence = 128}},
    {"quick",
     {.layers = 10,
      .hidden = 768,
      .heads = 12,
      .kv_heads = 6,
      .ffn = 2048,
      .vocab = 256,
      .sequence = 128}},
    {"gpt-124m",
     {.layers = 12,
      .hidden = 768,
      .heads = 12,
      .kv_heads = 12,
      .ffn = 2048,
      .vocab = 50257,
      .sequence = 1024}},
    {"gpt-1.5b",
     {.layers = 48,
      .hidden = 1600,
      .heads = 25,
      .kv_heads = 25,
      .ffn = 4288,
      .vocab = 50257,
      .sequence = 1024}},
};

void require(bool condition, std::string_view message) {
  if (!condition) throw strata::Error(strata::ErrorCode::config, message);
}

std::uint64_t block_matrix_elems(const GptConfig& c) {
  const std::uint64_t hidden = c.hidden;
  return hidden * (2 * hidden + 2 * c.kv_width() + 3 * std::uint64_t{c.ffn});
}

strata::TensorSpec matrix(std::string name, std::uint64_t rows, std::uint64_t cols) {
  return {.name = std::move(name), .shape = {rows, cols}, .trainable = true, .group = kDecayGroup};
}

strata::TensorSpec norm(std::string name, std::uint64_t width) {
  return {.name = std::move(name), .shape = {width}, .trainable = true, .group = kNormGroup};
}

}  // namespace

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& one : kPresets) names.push_back(one.name);
  return names;
}

GptConfig preset(std::string_view name) {
  for (const Preset& one : kPresets) {
    if (one.name == name) return one.config;
  }
  throw strata::Error(strata::ErrorCode::config,
                      fmt::format("no preset is called \"{}\"; choose one of {}", name,
                                  fmt::join(preset_names(), ", ")));
}

void validate(const GptConfig& c) {
  require(c.layers > 0, "layers must be at least 1");
  require(c.heads > 0, "heads must be at least 1");
  require(c.hidden > 0 && c.hidden % c.heads == 0,
          fmt::format("hidden ({}) must be a multiple of heads ({})", c.hidden, c.heads));
  require(c.head_dim() % 2 == 0,
          fmt::format("hidden / heads ({}) must be even for rotary positions", c.head_dim()));
  require(c.kv_heads > 0 && c.heads % c.kv_heads == 0,
          fmt::format("heads ({}) must be a multiple of kv_heads ({})", c.heads, c.kv_heads));
  require(c.ffn > 0, "ffn must be at least 1");
  require(c.vocab > 1, "vocab must be at least 2");
  require(c.sequence > 0, "sequence must be at least 1");
  require(c.rope_theta > 0, "rope_theta must be above 0");
  require(c.norm_eps > 0, "norm_eps must be above 0");
}

std::vector<strata::UnitSpec> units(const GptConfig& c) {
  const std::uint64_t hidden = c.hidden;
  const std::uint64_t kv = c.kv_width();
  const std::uint64_t ffn = c.ffn;
  std::vector<strata::UnitSpec> all;
  all.push_back({"embed",
                 {matrix("embedding", c.vocab, hidden)},
                 {.reduces_per_micro_batch = c.tied_embeddings ? 2U : 1U}});
  for (std::uint32_t layer = 0; layer < c.layers; ++layer) {
    all.push_back(
        {fmt::format("block.{}", layer),
         {norm("attn_norm", hidden), matrix("wq", hidden, hidden), matrix("wk", kv, hidden),
          matrix("wv", kv, hidden), matrix("wo", hidden, hidden), norm("ffn_norm", hidden),
          matrix("w_gate", ffn, hidden), matrix("w_up", ffn, hidden),
          matrix("w_down", hidden, ffn)},
         {}});
  }
  strata::UnitSpec head{"head", {norm("final_norm", hidden)}, {}};
  if (!c.tied_embeddings) head.tensors.push_back(matrix("lm_head", c.vocab, hidden));
  all.push_back(std::move(head));
  return all;
}

std::uint64_t parameter_count(const GptConfig& config) {
  std::uint64_t count = 0;
  for (const strata::UnitSpec& unit : units(config)) {
    for (const strata::TensorSpec& tensor : unit.tensors) count += tensor.count_elems();
  }
  return count;
}

double flops_per_token(const GptConfig& c, Pass pass) {
  // A query at position p meets p + 1 keys, so (sequence + 1) / 2 on average.
  const double attention = 2.0 * c.hidden * (c.sequence + 1.0);
  const double block = 2.0 * static_cast<double>(block_matrix_elems(c)) + attention;
  const double blocks = c.layers * block;
  const double head = 2.0 * c.vocab * c.hidden;
  switch (pass) {
    case Pass::forward: return blocks + head;
    case Pass::train: return 3 * (blocks + head);
    case Pass::train_with_recompute: return 4 * blocks + 3 * head;
  }
  return 0;
}

}  // namespace train_gpt
