// config.json both ways: the models that train_gpt can compute, and one clear line for each field
// that would change the math.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/error_of.hpp"
#include "support/loop_file_system.hpp"
#include "support/safetensors_files.hpp"
#include "train_gpt/llama_config.hpp"
#include "train_gpt/llama_tensors.hpp"
#include "train_gpt/pretrained.hpp"

namespace strata::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using train_gpt::GptConfig;
using train_gpt::LlamaConfig;
using train_gpt::read_llama_config;

// As transformers saves it.
json good_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", 96},
          {"intermediate_size", 200},
          {"max_position_embeddings", 512},
          {"num_attention_heads", 6},
          {"num_hidden_layers", 3},
          {"num_key_value_heads", 2},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 50000.0},
          {"tie_word_embeddings", false},
          {"vocab_size", 260}};
}

class Llama : public testing::Test {
 protected:
  LlamaConfig read(const std::string& text) const {
    write_bytes(scratch_.path() + "/config.json", text);
    return read_llama_config(scratch_.path());
  }
  LlamaConfig read_with(const json& changes) const {
    json config = good_config();
    config.update(changes);
    return read(config.dump());
  }
  std::string refusal(const std::string& text) const {
    const Error error = error_of([&] { (void)read(text); });
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_THAT(error.what(), HasSubstr(scratch_.path() + "/config.json"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  std::string refusal_of(const json& changes) const {
    json config = good_config();
    config.update(changes);
    for (const auto& [name, value] : changes.items()) {
      if (value == "MISSING") config.erase(name);
    }
    return refusal(config.dump());
  }

  ScratchDirectory scratch_;
};

TEST_F(Llama, ConfigsOfTransformersAreRead) {
  const LlamaConfig config = read(good_config().dump());
  const GptConfig& model = config.model;
  EXPECT_EQ(model.layers, 3U);
  EXPECT_EQ(model.hidden, 96U);
  EXPECT_EQ(model.heads, 6U);
  EXPECT_EQ(model.kv_heads, 2U);
  EXPECT_EQ(model.ffn, 200U);
  EXPECT_EQ(model.vocab, 260U);
  EXPECT_EQ(config.max_positions, 512U);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_EQ(model.rope_theta, 50000.0F);
  EXPECT_EQ(model.norm_eps, 1e-6F);
  EXPECT_EQ(read_with({{"num_key_value_heads", nullptr}}).model.kv_heads, 6U);
  EXPECT_EQ(read_with({{"rope_theta", nullptr}}).model.rope_theta, 10000.0F);
  EXPECT_TRUE(read_with({{"tie_word_embeddings", true}}).model.tied_embeddings);
  // Version 5 of transformers, and a Qwen2 that slides no window.
  EXPECT_EQ(read_with({{"rope_theta", nullptr},
                       {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e5}}}})
                .model.rope_theta,
            7e5F);
  EXPECT_EQ(read_with({{"model_type", "qwen2"},
                       {"architectures", {"Qwen2ForCausalLM"}},
                       {"use_sliding_window", false},
                       {"sliding_window", 4096},
                       {"layer_types", {"full_attention", "full_attention", "full_attention"}},
                       {"rope_scaling", {{"type", "default"}}},
                       {"head_dim", 16}})
                .model.layers,
            3U);
}

TEST_F(Llama, WhatWouldChangeTheMathIsRefusedByName) {
  const std::pair<json, const char*> cases[] = {
      {{{"model_type", "mistral"}}, "model_type is \"mistral\", which train_gpt cannot compute"},
      {{{"model_type", "MISSING"}}, "model_type is missing"},
      {{{"architectures", {"LlamaForSequenceClassification"}}}, "architectures is [\"Llama"},
      {{{"architectures", "LlamaForCausalLM"}}, "architectures is"},
      {{{"hidden_act", "gelu"}}, "hidden_act is \"gelu\""},
      {{{"head_dim", 32}}, "head_dim is 32"},
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}}},
       "the rope_type of rope_scaling is \"llama3\""},
      {{{"rope_scaling", {{"type", "linear"}}}}, "the rope_type of rope_scaling is \"linear\""},
      {{{"rope_scaling", {{"factor", 8}}}}, "the rope_type of rope_scaling is {\"factor\":8}"},
      {{{"rope_scaling", 2}}, "rope_scaling is 2"},
      {{{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}},
       "partial_rotary_factor is 0.5"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5"},
      {{{"use_sliding_window", true}}, "use_sliding_window is true"},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types is"},
      {{{"quantization_config", {{"quant_method", "awq"}}}}, "quantization_config is"},
      {{{"hidden_size", "MISSING"}}, "hidden_size is missing"},
      {{{"hidden_size", 96.5}}, "hidden_size must be a whole number"},
      {{{"hidden_size", -96}}, "hidden_size must be a whole number"},
      {{{"hidden_size", 0}}, "hidden_size must be a whole number"},
      {{{"vocab_size", 1ULL << 40}}, "vocab_size must be a whole number from 1 to"},
      {{{"rms_norm_eps", "small"}}, "rms_norm_eps must be a number"},
      {{{"rms_norm_eps", 0}}, "norm_eps must be above 0"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings must be true or false"},
      {{{"num_attention_heads", 7}}, "hidden (96) must be a multiple of heads (7)"},
      {{{"num_key_value_heads", 4}}, "heads (6) must be a multiple of kv_heads (4)"},
  };
  for (const auto& [changes, message] : cases) {
    SCOPED_TRACE(changes.dump());
    EXPECT_THAT(refusal_of(changes), HasSubstr(message));
  }
  for (const char* text : {"[]", "{", "null", "\xFF"}) {
    EXPECT_THAT(refusal(text), HasSubstr("not a JSON object"));
  }
  EXPECT_THAT(refusal(""), HasSubstr("cannot be read"));
  EXPECT_THAT(refusal(std::string((1 << 20) + 1, ' ')), HasSubstr("larger than 1 MiB"));
  EXPECT_THAT(refusal(std::string(1 << 20, '[')), HasSubstr("not a JSON object"));
  const Error missing = error_of([&] { (void)read_llama_config(scratch_.path() + "/missing"); });
  EXPECT_THAT(missing.what(), HasSubstr("a directory that save_pretrained() wrote"));
}

TEST_F(Llama, WhatIsWrittenIsReadBack) {
  LlamaConfig config = read_with({{"tie_word_embeddings", true}, {"rms_norm_eps", 1e-5}});
  const std::string text = llama_config_json(config, DType::bf16);
  const LlamaConfig again = read(text);
  EXPECT_EQ(again.model.layers, config.model.layers);
  EXPECT_EQ(again.model.kv_heads, config.model.kv_heads);
  EXPECT_EQ(again.model.rope_theta, config.model.rope_theta);
  EXPECT_EQ(again.model.norm_eps, config.model.norm_eps);
  EXPECT_EQ(again.model.tied_embeddings, config.model.tied_embeddings);
  EXPECT_EQ(again.max_positions, config.max_positions);
  EXPECT_EQ(llama_config_json(again, DType::bf16), text);
  const json written = json::parse(text);
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  EXPECT_EQ(written["rms_norm_eps"], 1e-5) << "not the nearest double of a float";
}

TEST_F(Llama, TensorsHaveTheirNamesAndTiedOnesNoHead) {
  GptConfig model = read(good_config().dump()).model;
  const auto all = llama_tensors(model);
  ASSERT_EQ(all.size(), 1U + 3 * 9 + 2);
  EXPECT_EQ(all.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(all[10].name, "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(all[12].name, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(all[12].shape, (std::vector<std::uint64_t>{32, 96}));
  EXPECT_EQ(all[27].name, "model.layers.2.mlp.down_proj.weight");
  EXPECT_EQ(all[28].name, "model.norm.weight");
  EXPECT_EQ(all[29].name, "lm_head.weight");
  model.tied_embeddings = true;
  EXPECT_EQ(llama_tensors(model).back().name, "model.norm.weight");
}

// A model of one block and width 2, with tensors of our choice beside its own.
class Files : public Llama {
 protected:
  static GptConfig model() {
    return {
        .layers = 1, .hidden = 2, .heads = 1, .kv_heads = 1, .ffn = 1, .vocab = 2, .sequence = 4};
  }
  void write_model(const std::vector<std::pair<std::string, std::vector<float>>>& more) const {
    json header;
    std::string data;
    const auto add = [&](const std::string& name, const json& shape, const std::string& bytes) {
      header[name] = {{"dtype", "F32"},
                      {"shape", shape},
                      {"data_offsets", {data.size(), data.size() + bytes.size()}}};
      data += bytes;
    };
    for (const auto& tensor : train_gpt::llama_tensors(model())) {
      std::uint64_t count = 1;
      for (const std::uint64_t extent : tensor.shape) count *= extent;
      add(tensor.name, tensor.shape, std::string(4 * count, '\0'));
    }
    for (const auto& [name, values] : more) {
      const char* bytes = reinterpret_cast<const char*>(values.data());
      add(name, {values.size()}, {bytes, bytes + 4 * values.size()});
    }
    write_bytes(scratch_.path() + "/model.safetensors", tensor_file(header.dump(), data));
  }
};

TEST_F(Files, BiasesMustBeZeroAndOtherTensorsAreTold) {
  write_model({{"model.layers.0.self_attn.q_proj.bias", {0, -0.0F}},
               {"model.layers.0.self_attn.rotary_emb.inv_freq", {1}}});
  EXPECT_TRUE(train_gpt::Pretrained(scratch_.path(), model()).warnings().empty());
  std::vector<float> bias(10'000);
  bias[9'999] = 1e-30F;
  write_model({{"model.layers.0.mlp.down_proj.bias", bias}});
  const Error error = error_of([&] { train_gpt::Pretrained(scratch_.path(), model()); });
  EXPECT_EQ(error.code(), ErrorCode::config);
  EXPECT_THAT(error.what(), HasSubstr("tensor model.layers.0.mlp.down_proj.bias is not all 0"));
  write_model({{"lm_head.weight", {1, 2, 3, 4}}, {"x", {1}}});
  EXPECT_THAT(train_gpt::Pretrained(scratch_.path(), model()).warnings(),
              testing::ElementsAre(HasSubstr("does not use \"lm_head.weight\" and \"x\"")));
}

}  // namespace
}  // namespace strata::test
