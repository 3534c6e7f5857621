#include "summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "resources.hpp"
#include "strata/bytes.hpp"

namespace train_gpt {
namespace {

using strata::Bytes;
using strata::Tier;

constexpr std::size_t kWarmupSteps = 2;

std::string bytes_text(std::uint64_t size) { return format_bytes(Bytes{size}); }

std::uint64_t sum_of_ranks(const RunRecord& run, std::uint64_t (*value)(const RankNumbers&)) {
  return std::accumulate(
      run.ranks.begin(), run.ranks.end(), std::uint64_t{0},
      [&](std::uint64_t sum, const RankNumbers& rank) { return sum + value(rank); });
}

std::string line(std::string_view name, std::string_view text) {
  return fmt::format("  {:<12}{}\n", name, text);
}

std::string loss_lines(const RunRecord& run) {
  if (run.steps.empty()) return line("loss", "no step was finished");
  const auto skipped = std::ranges::count_if(run.steps, &StepRecord::skipped);
  std::string text =
      line("loss", fmt::format("{:.4f} first, {:.4f} last, {} steps{}", run.steps.front().loss,
                               run.steps.back().loss, run.steps.size(),
                               skipped == 0 ? "" : fmt::format(", {} of them skipped", skipped)));
  if (!run.evals.empty()) {
    text += line("eval loss", fmt::format("{:.4f} first, {:.4f} last", run.evals.front().loss,
                                          run.evals.back().loss));
  }
  return text;
}

std::string size_lines(const RunRecord& run) {
  const std::uint64_t states = states_bytes(run);
  const std::uint64_t device =
      sum_of_ranks(run, [](const RankNumbers& rank) { return rank.tiers[0].budget; });
  const std::uint64_t host =
      sum_of_ranks(run, [](const RankNumbers& rank) { return rank.tiers[1].budget; });
  const auto ratio = [&](std::uint64_t budget) {
    if (budget == 0 || states == 0) return std::string();
    const double share = static_cast<double>(states) / static_cast<double>(budget);
    return share >= 1 ? fmt::format(" (1/{:.1f} of the states)", share)
                      : fmt::format(" ({:.1f} x the states)", 1 / share);
  };
  return line("model",
              fmt::format("{}: {:.1f} M parameters, {} {}, {} tokens per step", run.options.preset,
                          static_cast<double>(run.parameters) / 1e6, run.ranks.size(),
                          run.ranks.size() == 1 ? "rank" : "ranks", run.tokens_per_step)) +
         line("states",
              fmt::format("{} in all; device budget {}{}, host budget {}{}", bytes_text(states),
                          bytes_text(device), ratio(device), bytes_text(host), ratio(host)));
}

std::string storage_line(const RunRecord& run) {
  const strata::StorageFacts& storage = run.storage;
  if (storage.backend.empty()) return {};
  return line("nvme I/O", fmt::format("{}, {}, {}staging memory on {} pages, {}", storage.backend,
                                      storage.direct ? "direct" : "through the page cache",
                                      storage.registered ? "registered " : "",
                                      bytes_text(storage.page_size.value),
                                      storage.verified ? "every tile verified" : "not verified"));
}

std::string schedule_line(const RunRecord& run) {
  const strata::ScheduleFacts& schedule = run.schedule;
  return line("schedule", fmt::format("{} of {} steps ran ahead, {} deviated; {} gather slots",
                                      schedule.followed, schedule.steps, schedule.deviations,
                                      schedule.gather_slots));
}

std::string time_lines(const RunRecord& run) {
  if (run.steps.empty()) return {};
  const StepTimes times = step_times(run);
  std::string text =
      line("speed", fmt::format("{:.3f} s per step (median), {:.0f} tokens/s", times.median,
                                static_cast<double>(run.tokens_per_step) / times.median));
  text +=
      line("seconds",
           fmt::format("{:.3f} mean = gather {:.3f} + gradient buffer {:.3f} + drain {:.3f} + "
                       "verdict {:.3f} + update {:.3f} + other {:.3f}",
                       times.mean, times.parts.gather_wait, times.parts.gradient_wait,
                       times.parts.drain, times.parts.verdict, times.parts.update, times.other));
  text += line("", fmt::format("compute stream busy {:.3f} of them", times.compute));
  return text;
}

std::string link_table(const RunRecord& run) {
  if (run.steps.empty()) return {};
  const LinkRates moved = moved_per_parameter(run);
  const LinkRates floor = floor_per_parameter(run);
  std::string text =
      fmt::format("\n  {:<28}{:>10}{:>10}\n", "bytes per parameter and step", "moved", "floor");
  const auto row = [&](std::string_view name, double LinkRates::*rate) {
    text += fmt::format("  {:<28}{:>10.3f}{:>10.3f}\n", name, moved.*rate, floor.*rate);
  };
  row("nvme read", &LinkRates::nvme_read);
  row("nvme written", &LinkRates::nvme_written);
  row("host to device", &LinkRates::host_to_device);
  row("device to host", &LinkRates::device_to_host);
  return text;
}

std::string tier_table(const RunRecord& run) {
  if (run.ranks.empty()) return {};
  std::string text = fmt::format("\n  {:<28}{:>12}{:>12}{:>12}\n", "bytes, largest of the ranks",
                                 "peak", "reserved", "budget");
  for (std::size_t tier = 0; tier < strata::kTierCount; ++tier) {
    TierNumbers most;
    for (const RankNumbers& rank : run.ranks) {
      most.peak = std::max(most.peak, rank.tiers[tier].peak);
      most.reserved = std::max(most.reserved, rank.tiers[tier].reserved);
      most.budget = std::max(most.budget, rank.tiers[tier].budget);
    }
    text += fmt::format("  {:<28}{:>12}{:>12}{:>12}\n", name_of(static_cast<Tier>(tier)),
                        bytes_text(most.peak), bytes_text(most.reserved), bytes_text(most.budget));
  }
  return text;
}

}  // namespace

StepTimes step_times(const RunRecord& run) {
  StepTimes times;
  if (run.steps.empty()) return times;
  const std::size_t skip = run.steps.size() > kWarmupSteps ? kWarmupSteps : 0;
  const std::span<const StepRecord> steps = std::span(run.steps).subspan(skip);
  std::vector<double> seconds;
  const double share = 1 / static_cast<double>(steps.size());
  for (const StepRecord& step : steps) {
    seconds.push_back(step.seconds);
    times.mean += share * step.seconds;
    times.compute += share * step.compute_seconds;
    times.parts.total += share * step.parts.total;
    times.parts.gather_wait += share * step.parts.gather_wait;
    times.parts.gradient_wait += share * step.parts.gradient_wait;
    times.parts.drain += share * step.parts.drain;
    times.parts.verdict += share * step.parts.verdict;
    times.parts.update += share * step.parts.update;
  }
  std::ranges::sort(seconds);
  const std::size_t middle = seconds.size() / 2;
  times.median =
      seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  times.other = times.mean - times.parts.gather_wait - times.parts.gradient_wait -
                times.parts.drain - times.parts.verdict - times.parts.update;
  return times;
}

LinkRates moved_per_parameter(const RunRecord& run) {
  LinkRates rates;
  if (run.steps.empty()) return rates;
  const double share =
      1 / (static_cast<double>(run.parameters) * static_cast<double>(run.steps.size()));
  for (const RankNumbers& rank : run.ranks) {
    rates.nvme_read += share * static_cast<double>(rank.step_bytes.nvme_read);
    rates.nvme_written += share * static_cast<double>(rank.step_bytes.nvme_written);
    rates.host_to_device += share * static_cast<double>(rank.step_bytes.host_to_device);
    rates.device_to_host += share * static_cast<double>(rank.step_bytes.device_to_host);
  }
  return rates;
}

// A session's floor is per parameter of its share, and all shares are equal.
LinkRates floor_per_parameter(const RunRecord& run) {
  LinkRates rates;
  const double share = 1 / static_cast<double>(run.ranks.size());
  for (const RankNumbers& rank : run.ranks) {
    rates.nvme_read += share * rank.floor.nvme_read;
    rates.nvme_written += share * rank.floor.nvme_written;
    rates.host_to_device += share * rank.floor.host_to_device;
    rates.device_to_host += share * rank.floor.device_to_host;
  }
  return rates;
}

std::uint64_t states_bytes(const RunRecord& run) {
  return sum_of_ranks(run, [](const RankNumbers& rank) {
    return rank.tiers[0].at_rest + rank.tiers[1].at_rest + rank.tiers[2].at_rest;
  });
}

std::string summary_text(const RunRecord& run) {
  return fmt::format("\nsummary{}\n", run.interrupted ? ", interrupted" : "") + loss_lines(run) +
         size_lines(run) + storage_line(run) + schedule_line(run) + time_lines(run) +
         resource_table(run) + link_table(run) + tier_table(run);
}

}  // namespace train_gpt
