#include "bench_step.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench_step_plan.hpp"
#include "bench_step_run.hpp"
#include "interrupt.hpp"
#include "output_file.hpp"
#include "paced/paced_device.hpp"
#include "paced/paced_disk.hpp"
#include "session/factory.hpp"
#include "statistics.hpp"
#include "strata/bytes.hpp"
#include "strata/clock.hpp"
#include "strata/error.hpp"
#include "strata/machine.hpp"

namespace strata::tool {
namespace {

using Json = nlohmann::ordered_json;
using Check = std::function<void()>;

// Compute over I/O.
constexpr double kRatios[] = {1.0, 0.5, 2.0};
constexpr double kReadRateOverWriteRate = 4.0 / 3;  // of NVMe drives: they read faster
constexpr const char* kPacedDirectory = "/paced";

struct ModeResult {
  StepMode mode = StepMode::resident;
  Spread seconds;
  double limit = 0;
  double predicted = 0;  // on the virtual clock
};

struct MachineResult {
  std::string name;
  double ratio = 0;  // compute over I/O
  StepWork work;
  std::vector<ModeResult> modes;
  StepRun scheduled;  // of the last mode
};

// The same step where nothing is computed and time is arithmetic.
double predict(const BenchStepOptions& options, StepMode mode, const StepWork& work,
               const MachineRates& rates, const Check& check) {
  Config config = step_config(options, mode);
  config.nvme.directories = {kPacedDirectory};
  SimulatedMachine machine(rates);
  const Compute compute = [&machine](StreamId stream, double seconds, const HostFunction&) {
    machine.compute(stream, seconds);
  };
  return median(
      run_steps(options, config, machine.backends(config), compute, work, machine.clock(), check)
          .seconds);
}

ModeResult summary_of(StepMode mode, const StepRun& run, const StepWork& work, double predicted) {
  return {.mode = mode,
          .seconds = spread_of(run.seconds),
          .limit = limit_of(mode, work),
          .predicted = predicted};
}

MachineRates probe_rates(const BenchStepOptions& options, const Config& config, Backends backends) {
  Session session = Session::open(step_model(options), config, std::move(backends));
  return session.probe();
}

Backends paced_backends(const Config& config, const DiskPace& disk) {
  return {
      .communicator = make_self_communicator(),
      .device = std::make_unique<PacedDevice>(PacedDevice::Options{.arena = config.budgets.device}),
      .block_io = std::make_unique<PacedDisk>(PacedDisk::Options{.pace = disk, .store = nullptr})};
}

// What workers and the device of this machine do; the disk is as declared.
MachineRates paced_rates(const BenchStepOptions& options, StepMode mode, const DiskPace& disk) {
  Config config = step_config(options, mode);
  config.nvme.directories = {kPacedDirectory};
  MachineRates rates = probe_rates(options, config, paced_backends(config, DiskPace{}));
  rates.disks = {{.read_bytes_per_s = disk.read_bytes_per_second,
                  .write_bytes_per_s = disk.write_bytes_per_second,
                  .half_duplex = disk.half_duplex,
                  .latency_s = disk.request_latency_seconds}};
  return rates;
}

MachineResult measure_paced(const BenchStepOptions& options, double ratio, const Check& check) {
  const StepBytes bytes = step_bytes(options);
  // seconds = read / rate + written / rate
  const double write_rate =
      (bytes.read() / kReadRateOverWriteRate + bytes.written_update) / options.seconds;
  const DiskPace disk{.read_bytes_per_second = kReadRateOverWriteRate * write_rate,
                      .write_bytes_per_second = write_rate};
  MachineResult result{.name = "paced", .ratio = ratio};
  result.work = work_of(bytes, disk.read_bytes_per_second, disk.write_bytes_per_second,
                        ratio * options.seconds);
  for (const StepMode mode : kStepModes) {
    Config config = step_config(options, mode);
    config.nvme.directories = {kPacedDirectory};
    const MachineRates rates = paced_rates(options, mode, disk);
    Backends backends = paced_backends(config, disk);
    auto& paced = dynamic_cast<PacedDevice&>(*backends.device);
    const Compute compute = [&paced](StreamId stream, double seconds, HostFunction function) {
      paced.launch_for(stream, std::chrono::nanoseconds(std::llround(seconds * 1e9)),
                       std::move(function));
    };
    result.scheduled =
        run_steps(options, config, std::move(backends), compute, result.work, SteadyClock(), check);
    result.modes.push_back(summary_of(mode, result.scheduled, result.work,
                                      predict(options, mode, result.work, rates, check)));
  }
  return result;
}

// Spins for a number of dependent multiplications, as a kernel that computes does: it uses a core
// and no memory.
class Burner {
 public:
  // Measures its rate. Blocks for a tenth of a second or so.
  Burner() {
    constexpr std::uint64_t kProbe = 1 << 24;
    std::vector<double> rates;
    for (int i = 0; i < 5; ++i) {
      const std::int64_t begin_ns = clock_.now_ns();
      burn(kProbe);
      rates.push_back(static_cast<double>(kProbe) /
                      (static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9));
    }
    rate_ = median(rates);
  }

  void burn_for(double seconds) {
    if (seconds > 0) burn(static_cast<std::uint64_t>(seconds * rate_));
  }

 private:
  void burn(std::uint64_t count) {
    std::uint64_t value = sink_.load(std::memory_order_relaxed);
    for (std::uint64_t i = 0; i < count; ++i) value = value * 6364136223846793005U + i;
    sink_.store(value, std::memory_order_relaxed);
  }

  const SteadyClock clock_;
  std::atomic<std::uint64_t> sink_ = 1;
  double rate_ = 1;
};

Backends real_backends(const Config& config) {
  return {.communicator = make_self_communicator(),
          .device = make_cpu_device(config.budgets.device),
          .block_io = nullptr};
}

// The times of a step's I/O on this machine: phases without compute, with nothing beside them.
StepWork probe(const BenchStepOptions& options, const Config& config, const Check& check) {
  Backends backends = real_backends(config);
  Device& device = *backends.device;
  const Compute compute_nothing = [&device](StreamId stream, double, HostFunction function) {
    if (function) device.launch(stream, std::move(function));
  };
  const StepRun run =
      run_steps(options, config, std::move(backends), compute_nothing, {}, SteadyClock(), check);
  const double update = median(run.update_seconds);
  const double sweeps = std::max(median(run.seconds) - update, 0.0);
  return {.forward_io = sweeps / 2, .backward_io = sweeps / 2, .update_io = update};
}

MachineResult measure_real(const BenchStepOptions& options, const Check& check) {
  MachineResult result{.name = "real", .ratio = 1};
  const auto config_of = [&](StepMode mode) {
    Config config = step_config(options, mode);
    config.nvme.directories = {options.directory};
    return config;
  };
  Burner burner;
  result.work = probe(options, config_of(StepMode::look_ahead_0), check);
  const double io = result.work.forward_io + result.work.backward_io + result.work.update_io;
  result.work.forward_compute = io / 3;
  result.work.backward_compute = 2 * io / 3;
  for (const StepMode mode : kStepModes) {
    const Config config = config_of(mode);
    const MachineRates rates = probe_rates(options, config, real_backends(config));
    Backends backends = real_backends(config);
    Device& device = *backends.device;
    const Compute compute = [&](StreamId stream, double seconds, HostFunction function) {
      device.launch(stream, [&burner, seconds, function = std::move(function)] {
        const SteadyClock clock;
        const std::int64_t begin_ns = clock.now_ns();
        if (function) function();
        burner.burn_for(seconds - static_cast<double>(clock.now_ns() - begin_ns) * 1e-9);
      });
    };
    result.scheduled =
        run_steps(options, config, std::move(backends), compute, result.work, SteadyClock(), check);
    result.modes.push_back(summary_of(mode, result.scheduled, result.work,
                                      predict(options, mode, result.work, rates, check)));
  }
  return result;
}

std::string text_of(const MachineResult& machine) {
  const StepWork& work = machine.work;
  std::string text = fmt::format(
      "\n{} machine, compute : I/O = {:.2g}\n"
      "  compute: {:.3f} s forward, {:.3f} s backward\n"
      "  I/O: {:.3f} s forward, {:.3f} s backward, {:.3f} s update\n"
      "  bound: {:.3f} s\n"
      "  {:<18}{:>8}{:>17}{:>10}{:>7}{:>18}\n",
      machine.name, machine.ratio, work.forward_compute, work.backward_compute, work.forward_io,
      work.backward_io, work.update_io, work.bound(), "mode", "step, s", "80% of steps", "limit, s",
      "ratio", "virtual clock, s");
  for (const ModeResult& mode : machine.modes) {
    text += fmt::format("  {:<18}{:>8.3f}{:>17}{:>10.3f}{:>7.3f}{:>18}\n", name_of(mode.mode),
                        mode.seconds.median,
                        fmt::format("{:.3f} to {:.3f}", mode.seconds.low, mode.seconds.high),
                        mode.limit, mode.seconds.median / mode.limit,
                        fmt::format("{:.3f} ({:+.1f} %)", mode.predicted,
                                    100 * (mode.predicted / mode.seconds.median - 1)));
  }
  const ScheduleFacts& schedule = machine.scheduled.schedule;
  return text + fmt::format("  {} of {} steps followed the schedule, {} gather slots\n",
                            schedule.followed, schedule.steps, schedule.gather_slots);
}

Json json_of(const MachineResult& machine) {
  static constexpr const char* kKeys[] = {"resident", "lookahead0", "verdict", "in_backward"};
  const StepWork& work = machine.work;
  Json json{{"compute_over_io", machine.ratio}};
  for (const ModeResult& mode : machine.modes) {
    const std::string key = kKeys[static_cast<std::size_t>(mode.mode)];
    json[key + "_s"] = mode.seconds.median;
    json[key + "_s_80"] = {mode.seconds.low, mode.seconds.high};
    json[key + "_limit_s"] = mode.limit;
    json[key + "_virtual_s"] = mode.predicted;
  }
  // That of the default: updates after the verdict.
  json["virtual_s"] = json["verdict_virtual_s"];
  json["bound_s"] = work.bound();
  json["forward_compute_s"] = work.forward_compute;
  json["backward_compute_s"] = work.backward_compute;
  json["forward_io_s"] = work.forward_io;
  json["backward_io_s"] = work.backward_io;
  json["update_io_s"] = work.update_io;
  return json;
}

Json json_of(const std::vector<MachineResult>& machines) {
  Json json;
  Json ratios = Json::array();
  for (const MachineResult& machine : machines) {
    if (machine.name == "real") {
      json["real"] = json_of(machine);
    } else {
      if (!json.contains("paced")) json["paced"] = json_of(machine);
      ratios.push_back(json_of(machine));
    }
  }
  json["paced_ratios"] = ratios;
  const StepRun& run = machines.front().scheduled;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const auto index = static_cast<std::size_t>(tier);
    json["reserved_bytes"][std::string(name_of(tier))] = run.reserved[index].value;
    json["planned_bytes"][std::string(name_of(tier))] = run.planned[index].value;
  }
  return json;
}

void bench_step(const BenchStepOptions& options, std::FILE* out) {
  if (!options.directory.empty() && !std::filesystem::is_directory(options.directory)) {
    throw Error(ErrorCode::io, "--dir is not a directory: create it first",
                {.path = options.directory});
  }
  std::optional<OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);
  const InterruptGuard interrupt;
  const Check check = [&interrupt] { interrupt.check(); };
  print(out,
        fmt::format("{} units of {} parameters; bf16 parameters and gradients, AdamW in fp32\n",
                    options.units, options.unit_params));
  std::vector<MachineResult> machines;
  const auto add = [&](MachineResult machine) {
    print(out, text_of(machine));
    machines.push_back(std::move(machine));
  };
  for (const double ratio : kRatios) add(measure_paced(options, ratio, check));
  if (!options.directory.empty()) add(measure_real(options, check));
  if (json) json->write(json_of(machines).dump(2) + "\n");
}

}  // namespace

void add_bench_step(CLI::App& bench, std::FILE* out) {
  const auto options = std::make_shared<BenchStepOptions>();
  CLI::App* step = bench.add_subcommand(
      "step", "Times of one training step by how far it runs ahead, beside what the rates allow");
  step->add_option("--units", options->units, "Units (transformer blocks); default: 32")
      ->check(CLI::Range(2U, 10'000U));
  step->add_option("--unit-params", options->unit_params, "Parameters of a unit; default: 524288")
      ->check(CLI::Range(std::uint64_t{64}, std::uint64_t{1} << 32));
  step->add_option("--rounds", options->rounds, "Steps that are measured; default: 7")
      ->check(CLI::Range(1U, 1'000'000U));
  step->add_option("--seconds", options->seconds,
                   "Time that the paced disk takes for a step; default: 0.8")
      ->check(CLI::Range(0.001, 3600.0));
  step->add_option("--dir", options->directory,
                   "Also run on this machine, with the states in files in this directory");
  step->add_option("--json", options->json, "Also write the results as JSON to this file");
  step->callback([options, out] { bench_step(*options, out); });
}

}  // namespace strata::tool
