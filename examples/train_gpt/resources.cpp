#include "resources.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "strata/bytes.hpp"

namespace train_gpt {
namespace {

double steps_of(const RunRecord& run) { return static_cast<double>(run.steps.size()); }

double per_step(const RunRecord& run, strata::Bytes bytes) {
  return static_cast<double>(bytes.value) / steps_of(run);
}

// Nothing for a rate that was not found.
std::optional<double> seconds_at(double bytes, double rate) {
  if (rate <= 0) return std::nullopt;
  return bytes / rate;
}

std::optional<double> disk_seconds(const strata::DiskRates& disk, double read, double written) {
  const double reading = read / disk.read_bytes_per_s;
  const double writing = written / disk.write_bytes_per_s;
  return disk.half_duplex ? reading + writing : std::max(reading, writing);
}

}  // namespace

double seconds_of_step(const RunRecord& run) { return run.resources.seconds / steps_of(run); }

std::vector<Resource> resources(const RunRecord& run) {
  const ResourceNumbers& numbers = run.resources;
  const strata::BusySeconds& busy = numbers.busy;
  const double steps = steps_of(run);
  const bool probed = numbers.rates.has_value();
  const strata::MachineRates rates = numbers.rates.value_or(strata::MachineRates{});
  const double read = per_step(run, numbers.bytes.nvme_read);
  const double written = per_step(run, numbers.bytes.nvme_written);
  const double in = per_step(run, numbers.bytes.host_to_device);
  const double out = per_step(run, numbers.bytes.device_to_host);
  const double received =
      per_step(run, numbers.bytes.gathered) + per_step(run, numbers.bytes.reduced);
  std::vector<Resource> all;
  const auto add = [&](std::string name, double seconds, double bytes,
                       std::optional<double> at_rates) {
    if (seconds <= 0) return;
    if (!probed) at_rates.reset();
    all.push_back({std::move(name), seconds / steps, bytes, at_rates});
  };
  double compute = 0;
  for (const StepRecord& step : run.steps) compute += step.compute_seconds;
  add("compute", compute, 0, {});
  add("nvme", busy.nvme, read + written,
      rates.disks.empty() ? std::nullopt : disk_seconds(rates.disks.front(), read, written));
  add("host to device", busy.host_to_device, in, seconds_at(in, rates.host_to_device_bytes_per_s));
  add("device to host", busy.device_to_host, out,
      seconds_at(out, rates.device_to_host_bytes_per_s));
  add("collectives", busy.collectives, received,
      seconds_at(received, rates.collective_bytes_per_s));
  add("device updates", busy.device_updates, 0, {});
  add(fmt::format("workers ({})", busy.worker_count),
      busy.workers / std::max(busy.worker_count, 1U), 0, {});
  return all;
}

std::optional<StepBound> step_bound(const RunRecord& run) {
  if (!run.resources.rates || run.steps.empty()) return std::nullopt;
  StepBound bound;
  for (const Resource& resource : resources(run)) {
    const bool computes = resource.name == "compute";
    const double seconds = computes ? resource.busy_s : resource.at_rates.value_or(0);
    if (seconds > bound.seconds) bound = {resource.name, seconds};
  }
  return bound;
}

std::string resource_table(const RunRecord& run) {
  if (run.steps.empty()) return {};
  const double step = seconds_of_step(run);
  std::string text = fmt::format("\n  {:<22}{:>10}{:>8}{:>14}{:>20}\n", "first rank, per step",
                                 "busy, s", "share", "bytes", "s at probed rates");
  for (const Resource& resource : resources(run)) {
    const auto bytes = strata::Bytes{static_cast<std::uint64_t>(resource.bytes)};
    text += fmt::format(
        "  {:<22}{:>10.3f}{:>7.0f}%{:>14}{:>20}\n", resource.name, resource.busy_s,
        100 * resource.busy_s / step, resource.bytes > 0 ? format_bytes(bytes) : std::string("-"),
        resource.at_rates ? fmt::format("{:.3f}", *resource.at_rates) : std::string("-"));
  }
  text += fmt::format("  {:<22}{:>10.3f}", "step", step);
  if (const auto bound = step_bound(run); bound && bound->seconds > 0) {
    text += fmt::format("  = {:.2f} x the bound of {:.3f} s ({})", step / bound->seconds,
                        bound->seconds, bound->resource);
  }
  return text + "\n";
}

}  // namespace train_gpt
