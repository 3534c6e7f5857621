#include "llama_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "strata/error.hpp"

namespace train_gpt {
namespace {

using Json = nlohmann::json;
using strata::DType;

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
constexpr std::uint32_t kMostExtent = std::uint32_t{1} << 24;

// What the library of that file takes where a field is missing.
constexpr double kDefaultEpsilon = 1e-6;
constexpr double kDefaultTheta = 10000;

// The fields of one config.json. Every function throws strata::Error(config).
class Fields {
 public:
  Fields(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw strata::Error(strata::ErrorCode::config, what, {.path = path_});
  }

  // train_gpt's decoder has no way to compute what the field asks for.
  [[noreturn]] void fail_unsupported(std::string_view name, const Json& value) const {
    constexpr std::size_t kMostShown = 60;
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
    fail(fmt::format("{} is {}, which train_gpt cannot compute; choose another model", name, text));
  }

  // Null when the field is missing or null.
  const Json* find(const char* name) const {
    const auto at = json_.find(name);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }

  std::uint32_t extent(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) fail(fmt::format("{} is missing", name));
    const bool whole = value->is_number_unsigned();
    const auto number = whole ? value->get<std::uint64_t>() : 0;
    if (number == 0 || number > kMostExtent) {
      fail(fmt::format("{} must be a whole number from 1 to {}", name, kMostExtent));
    }
    return static_cast<std::uint32_t>(number);
  }

  double number(const char* name, double otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) fail(fmt::format("{} must be a number", name));
    return value->get<double>();
  }

  bool flag(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) fail(fmt::format("{} must be true or false", name));
    return value->get<bool>();
  }

  // Refuses every value but `only`, which is also what a missing field means.
  void require(const char* name, const Json& only) const {
    const Json* value = find(name);
    if (value != nullptr && *value != only) fail_unsupported(name, *value);
  }

  const std::string& path() const { return path_; }

 private:
  const Json& json_;
  std::string path_;
};

Json parse(const std::string& path) {
  const auto fail = [&](std::string_view what) {
    throw strata::Error(strata::ErrorCode::config, what, {.path = path});
  };
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || file.gcount() == 0) {
    fail("config.json cannot be read; --init-from takes a directory that save_pretrained() wrote");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMostBytes) fail("config.json is larger than 1 MiB");
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) fail("config.json is not a JSON object");
  return json;
}

void check_kind(const Fields& fields) {
  const Json* type = fields.find("model_type");
  if (type == nullptr) fields.fail("model_type is missing");
  if (*type != "llama" && *type != "qwen2") fields.fail_unsupported("model_type", *type);
  const Json* classes = fields.find("architectures");
  if (classes == nullptr) return;
  const auto is_ours = [](const Json& name) {
    return name == "LlamaForCausalLM" || name == "Qwen2ForCausalLM";
  };
  if (!classes->is_array() || std::ranges::none_of(*classes, is_ours)) {
    fields.fail_unsupported("architectures", *classes);
  }
}

// Everything that changes the math and that the decoder has in one form only.
void check_math(const Fields& fields) {
  fields.require("hidden_act", "silu");
  fields.require("use_sliding_window", false);
  fields.require("partial_rotary_factor", 1.0);
  fields.require("is_encoder_decoder", false);
  fields.require("add_cross_attention", false);
  if (const Json* value = fields.find("quantization_config")) {
    fields.fail_unsupported("quantization_config", *value);
  }
  if (const Json* types = fields.find("layer_types")) {
    const auto is_full = [](const Json& type) { return type == "full_attention"; };
    if (!types->is_array() || !std::ranges::all_of(*types, is_full)) {
      fields.fail_unsupported("layer_types", *types);
    }
  }
}

// Older files have rope_theta and rope_scaling, newer ones rope_parameters with both.
double rope_theta(const Fields& fields) {
  double theta = fields.number("rope_theta", kDefaultTheta);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = fields.find(name);
    if (rope == nullptr) continue;
    if (!rope->is_object()) fields.fail_unsupported(name, *rope);
    const Fields inner(*rope, fields.path());
    const Json* type = inner.find("rope_type");
    if (type == nullptr) type = inner.find("type");
    if (type == nullptr || *type != "default") {
      fields.fail_unsupported(fmt::format("the rope_type of {}", name),
                              type == nullptr ? *rope : *type);
    }
    inner.require("partial_rotary_factor", 1.0);
    theta = inner.number("rope_theta", theta);
  }
  return theta;
}

std::string_view dtype_word(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::fp16: return "float16";
  }
  return "?";
}

// 1e-5F is 1e-05 in the file, and not the nearest double of it.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace

LlamaConfig read_llama_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const Json json = parse(path);
  const Fields fields(json, path);
  check_kind(fields);
  check_math(fields);
  LlamaConfig config;
  GptConfig& model = config.model;
  model.layers = fields.extent("num_hidden_layers");
  model.hidden = fields.extent("hidden_size");
  model.heads = fields.extent("num_attention_heads");
  const bool grouped = fields.find("num_key_value_heads") != nullptr;
  model.kv_heads = grouped ? fields.extent("num_key_value_heads") : model.heads;
  model.ffn = fields.extent("intermediate_size");
  model.vocab = fields.extent("vocab_size");
  config.max_positions = model.sequence = fields.extent("max_position_embeddings");
  model.tied_embeddings = fields.flag("tie_word_embeddings");
  model.rope_theta = static_cast<float>(rope_theta(fields));
  model.norm_eps = static_cast<float>(fields.number("rms_norm_eps", kDefaultEpsilon));
  try {
    validate(model);
  } catch (const strata::Error& error) {
    fields.fail(error.what());
  }
  fields.require("head_dim", model.head_dim());
  return config;
}

std::string llama_config_json(const LlamaConfig& config, DType dtype) {
  const GptConfig& model = config.model;
  const nlohmann::ordered_json json = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"head_dim", model.head_dim()},
      {"hidden_act", "silu"},
      {"hidden_size", model.hidden},
      {"initializer_range", 0.02},
      {"intermediate_size", model.ffn},
      {"max_position_embeddings", config.max_positions},
      {"mlp_bias", false},
      {"num_attention_heads", model.heads},
      {"num_hidden_layers", model.layers},
      {"num_key_value_heads", model.kv_heads},
      {"pretraining_tp", 1},
      {"rms_norm_eps", shortest(model.norm_eps)},
      {"rope_scaling", nullptr},
      {"rope_theta", shortest(model.rope_theta)},
      {"tie_word_embeddings", model.tied_embeddings},
      {"torch_dtype", dtype_word(dtype)},
      {"use_cache", true},
      {"vocab_size", model.vocab},
  };
  return json.dump(2) + "\n";
}

}  // namespace train_gpt
