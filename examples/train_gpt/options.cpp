#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "llama_config.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace train_gpt {
namespace {

using strata::Error;
using strata::ErrorCode;

// What stands on the command line, before the preset and the overrides become a model.
struct Flags {
  std::string data, tokens;
  unsigned token_bytes = 2;
  std::optional<std::uint32_t> layers, hidden, heads, kv_heads, ffn, vocab, sequence;
  bool tied = false;
  bool untied = false;
  std::string export_dtype, export_file;
};

void add_data_flags(CLI::App& app, Flags& flags) {
  auto* data = app.add_option("--data", flags.data, "Text file; its bytes are the tokens");
  auto* tokens = app.add_option("--tokens", flags.tokens, "File of little-endian token ids");
  tokens->excludes(data);
  app.add_option("--token-bytes", flags.token_bytes, "Width of the ids in --tokens: 2 or 4")
      ->check(CLI::IsMember({2, 4}))
      ->needs(tokens);
}

void add_model_flags(CLI::App& app, Flags& flags, Options& options) {
  auto* preset = app.add_option("--preset", options.preset,
                                fmt::format("Model: {}", fmt::join(preset_names(), ", ")))
                     ->capture_default_str();
  app.add_option("--init-from", options.init_from,
                 "Directory of a Llama's or Qwen2's config.json and safetensors")
      ->excludes(preset);
  app.add_option("--layers", flags.layers, "Blocks")->check(CLI::Range(1, 10'000));
  app.add_option("--hidden", flags.hidden, "Width of the residual stream")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--heads", flags.heads, "Attention heads")->check(CLI::Range(1, 1 << 16));
  app.add_option("--kv-heads", flags.kv_heads, "Heads of keys and values")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--ffn", flags.ffn, "Width of the feed-forward layer")
      ->check(CLI::Range(1, 1 << 22));
  app.add_option("--vocab", flags.vocab, "Token ids")->check(CLI::Range(2, 1 << 24));
  app.add_option("--sequence", flags.sequence, "Tokens of a sequence")
      ->check(CLI::Range(1, 1 << 20));
  auto* tied = app.add_flag("--tied", flags.tied, "The embedding is also the output projection");
  app.add_flag("--untied", flags.untied, "It is not")->excludes(tied);
}

void add_training_flags(CLI::App& app, Options& options) {
  app.add_option("--steps", options.steps, "Optimizer steps")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Sequences per micro-batch and rank")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--accumulation", options.accumulation, "Micro-batches per step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_flag("--vertical", options.vertical,
               "All micro-batches of a step pass a unit before the next unit is gathered");
  app.add_option("--seed", options.seed, "Seed of weights and batches")->capture_default_str();
  const CLI::Range rate(0.0, 1e6);
  app.add_option("--lr", options.learning_rate, "Peak rate [optimizer.learning_rate]")->check(rate);
  app.add_option("--min-lr", options.min_learning_rate, "Last rate [a tenth of the peak]")
      ->check(rate);
  app.add_option("--warmup", options.warmup_steps, "Steps of linear warm-up [steps / 10]");
  app.add_option("--eval-every", options.eval_every, "Steps between evaluations; 0: none")
      ->capture_default_str();
  app.add_option("--eval-batches", options.eval_batches, "Micro-batches per rank and evaluation")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

void add_export_flags(CLI::App& app, Flags& flags, Options& options) {
  auto* directory = app.add_option("--export", options.export_directory,
                                   "Write the trained weights here for transformers");
  app.add_option("--export-dtype", flags.export_dtype,
                 "bf16, fp16 or fp32 [that of the parameters]")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->needs(directory);
  app.add_option("--export-file-size", flags.export_file, "Most bytes of tensors in a file [5GB]")
      ->needs(directory);
}

void add_run_flags(CLI::App& app, Options& options) {
  app.add_option("--config", options.config_path, "Configuration of Strata (docs/config.md)");
  app.add_flag("--weights-hash", options.weights_hash,
               "End with a line `weights <hash of the final weights>`");
  app.add_option("--summary-json", options.summary_json_path, "Write the summary's numbers here");
  app.add_option("--timeline", options.timeline_path,
                 "Write what the first rank did in steps 3 to 5 here, for Perfetto");
  app.add_flag("!--no-probe", options.probe,
               "Do not find the machine's rates before the run (the bound in the summary)");
  app.add_option("--threads", options.threads, "BLAS threads per rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void apply(const Flags& flags, GptConfig& model) {
  model.layers = flags.layers.value_or(model.layers);
  model.hidden = flags.hidden.value_or(model.hidden);
  model.heads = flags.heads.value_or(model.heads);
  model.kv_heads = flags.kv_heads.value_or(model.kv_heads);
  model.ffn = flags.ffn.value_or(model.ffn);
  model.vocab = flags.vocab.value_or(model.vocab);
  model.sequence = flags.sequence.value_or(model.sequence);
  if (flags.tied) model.tied_embeddings = true;
  if (flags.untied) model.tied_embeddings = false;
}

// The files decide the shape; a flag may repeat it.
void refuse_contradiction(const GptConfig& files, const GptConfig& flags, const std::string& from) {
  const auto same = [&](std::uint64_t has, std::uint64_t asked, std::string_view name) {
    if (has == asked) return;
    throw Error(ErrorCode::config,
                fmt::format("{} ({}) contradicts {}/config.json ({}); leave it out", name, asked,
                            from, has));
  };
  same(files.layers, flags.layers, "--layers");
  same(files.hidden, flags.hidden, "--hidden");
  same(files.heads, flags.heads, "--heads");
  same(files.kv_heads, flags.kv_heads, "--kv-heads");
  same(files.ffn, flags.ffn, "--ffn");
  same(files.vocab, flags.vocab, "--vocab");
  same(files.tied_embeddings ? 1 : 0, flags.tied_embeddings ? 1 : 0, "--tied");
  if (flags.sequence > files.sequence) {
    throw Error(ErrorCode::config,
                fmt::format("--sequence ({}) is beyond max_position_embeddings ({}) of "
                            "{}/config.json; shorten it",
                            flags.sequence, files.sequence, from));
  }
}

void take_pretrained_model(const Flags& flags, Options& options) {
  constexpr std::uint32_t kUsualSequence = 1024;
  const LlamaConfig files = read_llama_config(options.init_from);
  options.preset = "pretrained";
  options.max_positions = files.max_positions;
  options.model = files.model;
  options.model.sequence = std::min(files.max_positions, kUsualSequence);
  apply(flags, options.model);
  refuse_contradiction(files.model, options.model, options.init_from);
}

void take_model(const Flags& flags, Options& options) {
  if (!options.init_from.empty()) return take_pretrained_model(flags, options);
  options.model = preset(options.preset);
  apply(flags, options.model);
  validate(options.model);
  options.max_positions = options.model.sequence;
}

void take_export(const Flags& flags, Options& options) {
  for (const strata::DType dtype :
       {strata::DType::bf16, strata::DType::fp16, strata::DType::fp32}) {
    if (flags.export_dtype == name_of(dtype)) options.export_dtype = dtype;
  }
  if (flags.export_file.empty()) return;
  const auto size = strata::parse_bytes(flags.export_file);
  if (!size || size->value == 0) {
    throw Error(ErrorCode::config, fmt::format("--export-file-size must be a size as 5GB; found {}",
                                               flags.export_file));
  }
  options.export_file_bytes = *size;
}

void take_data(const Flags& flags, Options& options) {
  if (flags.data.empty() && flags.tokens.empty()) {
    throw Error(ErrorCode::config,
                "there is nothing to train on: give --data FILE or --tokens FILE");
  }
  options.data_path = flags.data.empty() ? flags.tokens : flags.data;
  if (flags.data.empty()) {
    options.format = flags.token_bytes == 2 ? TokenFormat::u16 : TokenFormat::u32;
  }
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  Options& options = line.options;
  Flags flags;
  CLI::App app("Trains a Llama-style decoder with Strata, alone or under a launcher.", "train_gpt");
  add_data_flags(app, flags);
  add_model_flags(app, flags, options);
  add_training_flags(app, options);
  add_export_flags(app, flags, options);
  add_run_flags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.help = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::config,
                fmt::format("{} (train_gpt --help lists the flags)", error.what()));
  }
  take_model(flags, options);
  take_export(flags, options);
  take_data(flags, options);
  return line;
}

strata::Config load_config(const Options& options) {
  strata::Config config = options.config_path.empty()
                              ? strata::Config{}
                              : strata::Config::from_file(options.config_path);
  if (options.vertical) {
    config.precision.wide_gradients |= options.accumulation > 1;
  } else {
    config.engine.max_micro_batches =
        std::max(config.engine.max_micro_batches, options.accumulation);
  }
  config.validate();
  return config;
}

CosineSchedule schedule_of(const Options& options, const strata::Config& config) {
  constexpr double kFloorOfPeak = 0.1;
  constexpr std::uint64_t kWarmupShare = 10;
  CosineSchedule schedule;
  schedule.peak = options.learning_rate.value_or(config.optimizer.learning_rate);
  schedule.floor = options.min_learning_rate.value_or(kFloorOfPeak * schedule.peak);
  schedule.warmup_steps = options.warmup_steps.value_or(options.steps / kWarmupShare);
  schedule.total_steps = options.steps;
  if (schedule.floor > schedule.peak) {
    throw Error(ErrorCode::config, fmt::format("--min-lr ({}) must not be above the peak rate ({})",
                                               schedule.floor, schedule.peak));
  }
  return schedule;
}

}  // namespace train_gpt
