// train_gpt: trains a GPT with Strata, alone or as one rank of many. See docs/train_gpt.md.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "failure.hpp"
#include "interrupt.hpp"
#include "job.hpp"
#include "options.hpp"
#include "output.hpp"
#include "run.hpp"
#include "strata/safetensors.hpp"
#include "summary.hpp"

namespace train_gpt {
namespace {

// Everything that can be wrong before a session opens. Empty when there is nothing to run.
std::optional<RunInputs> prepare(int argc, char** argv, const Job& job, Output& output) {
  const CommandLine line = parse_command_line(argc, argv);
  if (line.help) {
    if (job.is_first()) output.write(*line.help);
    return std::nullopt;
  }
  RunInputs inputs{line.options, load_config(line.options), nullptr, nullptr};
  schedule_of(inputs.options, inputs.config);
  inputs.data = blaming_data([&] {
    return std::make_unique<Dataset>(inputs.options.data_path, inputs.options.format,
                                     inputs.options.model.vocab, inputs.options.model.sequence);
  });
  if (!inputs.options.init_from.empty()) {
    inputs.pretrained = blaming_data([&] {
      return std::make_unique<Pretrained>(inputs.options.init_from, inputs.options.model);
    });
  }
  if (job.is_first() && !inputs.options.export_directory.empty()) {
    strata::safetensors::Writer::check_destination(inputs.options.export_directory);
  }
  const auto check_output = [&](const std::string& path, std::string_view flag) {
    if (job.is_first() && !path.empty()) check_output_path(path, flag);
  };
  check_output(inputs.options.summary_json_path, "--summary-json");
  check_output(inputs.options.timeline_path, "--timeline");
  return inputs;
}

Outcome run(int argc, char** argv, Job& job) {
  Output output;
  std::optional<RunInputs> inputs;
  const Outcome prepared = job.agree(attempt([&] {
    inputs = prepare(argc, argv, job, output);
    return Outcome{};
  }));
  if (prepared.code != ExitCode::ok || !inputs) return prepared;
  return job.agree(attempt([&] { return Outcome{run_training(*inputs, job, output)}; }));
}

Outcome run_job(int argc, char** argv) {
  return attempt([&] {
    interrupt::install();
    Job job;
    return run(argc, argv, job);
  });
}

}  // namespace
}  // namespace train_gpt

int main(int argc, char** argv) {
  const train_gpt::Outcome outcome = train_gpt::run_job(argc, argv);
  if (!outcome.message.empty()) fmt::print(stderr, "train_gpt: error: {}\n", outcome.message);
  return static_cast<int>(outcome.code);
}
