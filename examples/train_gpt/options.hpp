// The command line of train_gpt (docs/train_gpt.md). Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data.hpp"
#include "model_config.hpp"
#include "schedule.hpp"
#include "strata/config.hpp"

namespace train_gpt {

struct Options {
  GptConfig model;
  std::string preset = "tiny";      // "pretrained" with init_from
  std::string init_from;            // a directory of weights; empty: drawn from the seed
  std::uint32_t max_positions = 0;  // of the model, for which `sequence` may be shorter

  std::string data_path;
  TokenFormat format = TokenFormat::bytes;

  std::uint64_t steps = 10;
  std::uint32_t batch = 4;         // sequences of one micro-batch of one rank
  std::uint32_t accumulation = 1;  // micro-batches of a step
  bool vertical = false;           // all of them pass a unit before the next
  std::uint64_t seed = 0;

  // Empty: derived from the configuration and the number of steps, see schedule_of().
  std::optional<double> learning_rate;
  std::optional<double> min_learning_rate;
  std::optional<std::uint64_t> warmup_steps;

  std::uint64_t eval_every = 0;  // 0: no evaluation
  std::uint32_t eval_batches = 4;

  std::string config_path;  // empty: the default configuration
  std::string summary_json_path;
  std::string timeline_path;  // empty: none
  bool probe = true;          // find the machine's rates before the run
  bool weights_hash = false;

  std::string export_directory;               // empty: no export
  std::optional<strata::DType> export_dtype;  // empty: that of the parameters
  strata::Bytes export_file_bytes{5'000'000'000};

  std::uint32_t threads = 1;

  std::uint64_t tokens_of_micro_batch() const { return std::uint64_t{batch} * model.sequence; }
};

struct CommandLine {
  Options options;
  std::optional<std::string> help;  // asked for: print this and stop
};

// Throws strata::Error(config) that names the flag.
CommandLine parse_command_line(int argc, const char* const* argv);

// The file's configuration with what the flags decide: --accumulation raises
// engine.max_micro_batches. Throws strata::Error(config).
strata::Config load_config(const Options& options);

CosineSchedule schedule_of(const Options& options, const strata::Config& config);

}  // namespace train_gpt
