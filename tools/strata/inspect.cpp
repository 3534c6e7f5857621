#include "inspect.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <fstream>
#include <memory>
#include <string>

#include "model_file.hpp"
#include "output_file.hpp"
#include "partition.hpp"
#include "partition_drawing.hpp"
#include "schedule_text.hpp"
#include "strata/config.hpp"
#include "strata/error.hpp"
#include "strata/session.hpp"

namespace strata::tool {
namespace {

// Beyond this a listing of ranks helps nobody.
constexpr std::uint32_t kMostRanks = 65536;

struct PartitionOptions {
  std::string model;
  std::uint32_t ranks = 1;
  std::string unit;
  std::string svg;
  std::string json;
};

struct MemoryOptions {
  std::string model;
  std::string config;
  std::uint32_t ranks = 1;
  std::uint32_t ranks_per_node = 0;
};

struct ScheduleOptions {
  std::string model;
  std::string config;
  ScheduleQuestion question{.ranks = 1, .ranks_per_node = 0, .micro_batches = 1};
};

void write_file(const std::string& path, const std::string& content) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << content << std::flush;
  if (!file) throw Error(ErrorCode::io, "cannot write", {.errnum = errno, .path = path});
}

// "models/two_layers.json" -> "two_layers"
std::string stem_of(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.substr(0, name.rfind('.'));
}

void inspect_partition(const PartitionOptions& options, std::FILE* out) {
  const Partition partition =
      make_partition(read_model_file(options.model), options.ranks, options.unit);
  if (!options.svg.empty()) {
    write_file(options.svg, draw_partition(partition, stem_of(options.model)));
  }
  if (!options.json.empty()) write_file(options.json, partition_json(partition));
  print(out, partition_text(partition));
}

void inspect_memory(const MemoryOptions& options, std::FILE* out) {
  const Model model = read_model_file(options.model);
  const Config config = Config::from_file(options.config);
  const std::uint32_t per_node =
      options.ranks_per_node == 0 ? options.ranks : options.ranks_per_node;
  const Bytes windows = options.ranks > 1 ? config.communicator.window : Bytes{};
  const MemoryPlan plan = Session::plan_memory(model, config, options.ranks, per_node, {}, windows);
  print(out, plan.to_text());
  plan.require_fit();
}

void inspect_schedule(const ScheduleOptions& options, std::FILE* out) {
  ScheduleQuestion question = options.question;
  if (question.ranks_per_node == 0) question.ranks_per_node = question.ranks;
  print(out,
        schedule_text(read_model_file(options.model), Config::from_file(options.config), question));
}

void add_ranks(CLI::App& command, std::uint32_t& ranks) {
  command.add_option("--ranks", ranks, "Ranks that share the model")
      ->required()
      ->check(CLI::Range(1U, kMostRanks));
}

}  // namespace

void add_inspect(CLI::App& app, std::FILE* out) {
  CLI::App* inspect = app.add_subcommand("inspect", "Show what the library would do with a model");
  inspect->require_subcommand(1);

  const auto partition = std::make_shared<PartitionOptions>();
  CLI::App* show = inspect->add_subcommand(
      "partition", "Which rank holds which elements of which tensor, as text and as a picture");
  show->add_option("--model", partition->model, "JSON description of the model")->required();
  add_ranks(*show, partition->ranks);
  show->add_option("--unit", partition->unit, "Show only this unit");
  show->add_option("--svg", partition->svg, "Also write a picture to this file");
  show->add_option("--json", partition->json, "Also write the same as JSON to this file");
  show->callback([partition, out] { inspect_partition(*partition, out); });

  const auto memory = std::make_shared<MemoryOptions>();
  CLI::App* plan = inspect->add_subcommand(
      "memory", "The bytes that a session reserves in each tier on one rank, line by line");
  plan->add_option("--model", memory->model, "JSON description of the model")->required();
  plan->add_option("--config", memory->config, "Configuration file")->required();
  add_ranks(*plan, memory->ranks);
  plan->add_option("--ranks-per-node", memory->ranks_per_node,
                   "Ranks on each host, for budgets.scope \"per_node\"; default: all")
      ->check(CLI::Range(1U, kMostRanks));
  plan->callback([memory, out] { inspect_memory(*memory, out); });

  const auto schedule = std::make_shared<ScheduleOptions>();
  CLI::App* ahead = inspect->add_subcommand(
      "schedule", "Which gathers a plain training step brings forward, call by call");
  ahead->add_option("--model", schedule->model, "JSON description of the model")->required();
  ahead->add_option("--config", schedule->config, "Configuration file")->required();
  add_ranks(*ahead, schedule->question.ranks);
  ahead
      ->add_option("--ranks-per-node", schedule->question.ranks_per_node,
                   "Ranks on each host, for budgets.scope \"per_node\"; default: all")
      ->check(CLI::Range(1U, kMostRanks));
  ahead
      ->add_option("--micro-batches", schedule->question.micro_batches,
                   "Micro-batches of a step; default: 1")
      ->check(CLI::Range(1U, 65536U));
  ahead->callback([schedule, out] { inspect_schedule(*schedule, out); });
}

}  // namespace strata::tool
