#include "bench_optim.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>

#include "base/host_kernels.hpp"
#include "bench_optim_accuracy.hpp"
#include "bench_optim_kernels.hpp"
#include "bench_optim_plan.hpp"
#include "bench_optim_report.hpp"
#include "bench_optim_streaming.hpp"
#include "interrupt.hpp"
#include "output_file.hpp"
#include "strata/error.hpp"

namespace strata::tool {
namespace {

constexpr unsigned kMostThreads = 4096;
constexpr unsigned kMostRounds = 1'000'000;

BenchOptimResults measure_all(const BenchOptimPlan& plan, std::FILE* out) {
  const InterruptGuard interrupt;
  const auto check = [&interrupt] { interrupt.check(); };
  BenchOptimResults results{.instruction_set = std::string(host_kernels::instruction_set())};
  double tiles_seconds = 0;
  ThreadTeam team(plan.threads);
  {
    BenchOptimKernels kernels(plan, team);
    print(out, bench_optim_announcement(plan));
    results.page_size = kernels.page_size();
    results.bandwidth_bytes_per_s = kernels.measure_bandwidth(check);
    for (const KernelCase& what : plan.cases) {
      results.kernels.push_back(kernels.measure(what, check));
      results.kernels.back().errors = largest_errors(what);
    }
    tiles_seconds = kernels.measure_tiles(plan.streamed_params, kStreamedTileElems, check);
  }
  results.streaming = measure_streaming(plan, tiles_seconds, check);
  return results;
}

void bench_optim(const BenchOptimOptions& options, std::FILE* out) {
  const BenchOptimPlan plan = make_bench_optim_plan(options, available_memory());
  std::optional<OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);
  const BenchOptimResults results = measure_all(plan, out);
  print(out, bench_optim_text(plan, results));
  if (json) json->write(bench_optim_json(plan, results));
}

}  // namespace

void add_bench_optim(CLI::App& bench, std::FILE* out) {
  const auto options = std::make_shared<BenchOptimOptions>();
  CLI::App* optim = bench.add_subcommand(
      "optim", "Rates of the optimizers' kernels, beside those of loops that only move the bytes");
  optim->add_option("--params", options->params,
                    "Parameters to update; default: 1.5 GiB of arrays, or a quarter of the free "
                    "memory");
  optim->add_option("--threads", options->threads, "Threads; default: all CPUs of this process")
      ->check(CLI::Range(1U, kMostThreads));
  optim->add_option("--rounds", options->rounds, "Measurements of everything; default: 9")
      ->check(CLI::Range(1U, kMostRounds));
  optim
      ->add_option("--disk-times", options->disk_times,
                   "How many times as long as the kernel the paced disk takes; default: 8")
      ->check(CLI::Range(0.01, 1000.0));
  optim->add_option("--json", options->json, "Also write the results as JSON to this file");
  optim->callback([options, out] { bench_optim(*options, out); });
}

}  // namespace strata::tool
