#include "bench_io.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench_io_phases.hpp"
#include "bench_io_plan.hpp"
#include "bench_io_report.hpp"
#include "bench_io_rig.hpp"
#include "interrupt.hpp"
#include "output_file.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata::tool {
namespace {

constexpr unsigned kMostWindows = 1'000'000;
constexpr unsigned kMostWorkers = 256;

// What the command line holds, before sizes are read.
struct BenchIoArguments {
  BenchIoOptions options;
  std::string bytes;
  std::vector<std::string> tiles;
  std::string backend = "auto";
};

Bytes size_of_option(const std::string& name, const std::string& text) {
  const std::optional<Bytes> size = parse_bytes(text);
  if (!size || *size == Bytes{}) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} {} is no size; write one such as 4MiB", name, text));
  }
  return *size;
}

BenchIoOptions options_of(const BenchIoArguments& arguments) {
  BenchIoOptions options = arguments.options;
  if (!arguments.bytes.empty()) options.bytes = size_of_option("--bytes", arguments.bytes);
  for (const std::string& tile : arguments.tiles) {
    options.tiles.push_back(size_of_option("--tile", tile));
  }
  if (arguments.backend == "io_uring") options.backend = Config::IoBackend::io_uring;
  if (arguments.backend == "posix") options.backend = Config::IoBackend::posix;
  return options;
}

void print_notices(std::FILE* out, BenchIoRig& rig) {
  for (const std::string& line : rig.take_notices()) print(out, wrapped("note: " + line));
}

// The library's messages name keys of the configuration.
std::unique_ptr<BenchIoRig> make_rig(const BenchIoOptions& options, const BenchIoPlan& plan) {
  try {
    return std::make_unique<BenchIoRig>(options, plan);
  } catch (const Error& error) {
    if (std::string(error.what()).find("nvme.") == std::string::npos) throw;
    throw error.with("here nvme.directories are --dir, and nvme.allow_tmpfs is --allow-tmpfs");
  }
}

void bench_io(const BenchIoArguments& arguments, std::FILE* out) {
  const BenchIoOptions options = options_of(arguments);
  const BenchIoPlan plan = make_bench_io_plan(options);
  std::optional<OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);
  const InterruptGuard interrupt;
  std::unique_ptr<BenchIoRig> rig = make_rig(options, plan);
  print(out, bench_io_announcement(options, plan));
  const BenchIoResults results = measure(options, plan, *rig, [&interrupt] { interrupt.check(); });
  print_notices(out, *rig);
  rig.reset();
  print(out, bench_io_text(options, plan, results));
  if (json) json->write(bench_io_json(options, plan, results));
}

}  // namespace

void add_bench_io(CLI::App& bench, std::FILE* out) {
  const auto arguments = std::make_shared<BenchIoArguments>();
  BenchIoOptions& options = arguments->options;
  CLI::App* io = bench.add_subcommand(
      "io", "Rates of the nvme tier, beside those of a loop that does nothing but I/O");
  io->add_option("--dir", options.directories, "Directories on the disks, as nvme.directories")
      ->required();
  io->add_option("--json", options.json, "Also write the results as JSON to this file");
  io->add_option("--bytes", arguments->bytes, "Size of all files together; default: 1GiB");
  io->add_option("--tile", arguments->tiles, "Tile sizes to try; default: 1MiB 4MiB 16MiB");
  io->add_option("--depth", options.depths, "Queue depths to try; default: 4 8 16");
  io->add_option("--windows", options.windows,
                 "Windows of each kind in the main measurement; default: 100")
      ->check(CLI::Range(1U, kMostWindows));
  io->add_option("--workers", options.workers,
                 "Threads that compute checksums, as engine.workers; default: 1")
      ->check(CLI::Range(1U, kMostWorkers));
  io->add_option("--backend", arguments->backend,
                 "What carries reads and writes, as nvme.backend: auto, io_uring or posix")
      ->check(CLI::IsMember({"auto", "io_uring", "posix"}));
  io->add_flag("--quick", options.quick, "Smaller files, fewer and smaller windows: a trial run");
  io->add_flag("--allow-tmpfs", options.allow_tmpfs, "Accept directories that rest in RAM");
  io->callback([arguments, out] { bench_io(*arguments, out); });
}

}  // namespace strata::tool
