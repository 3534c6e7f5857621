#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "resources.hpp"
#include "strata/error.hpp"
#include "summary.hpp"

namespace train_gpt {
namespace {

using Json = nlohmann::ordered_json;
using strata::Tier;

template <class Rates>
Json links_json(const Rates& links) {
  return {{"nvme_read", links.nvme_read},
          {"nvme_written", links.nvme_written},
          {"host_to_device", links.host_to_device},
          {"device_to_host", links.device_to_host}};
}

Json rank_json(const RankNumbers& rank) {
  Json tiers;
  for (std::size_t tier = 0; tier < strata::kTierCount; ++tier) {
    const TierNumbers& numbers = rank.tiers[tier];
    tiers[std::string(name_of(static_cast<Tier>(tier)))] = {{"budget", numbers.budget},
                                                            {"planned", numbers.planned},
                                                            {"reserved", numbers.reserved},
                                                            {"peak_in_use", numbers.peak},
                                                            {"at_rest", numbers.at_rest}};
  }
  Json bytes = links_json(rank.session_bytes);
  bytes["gathered"] = rank.gathered;
  bytes["reduced"] = rank.reduced;
  return {{"pid", rank.pid},
          {"bytes", bytes},
          {"step_bytes", links_json(rank.step_bytes)},
          {"os_read_bytes", rank.os_read_bytes},
          {"os_written_bytes", rank.os_written_bytes},
          {"peak_rss_bytes", rank.peak_rss_bytes},
          {"device_scratch_bytes", rank.device_scratch},
          {"host_scratch_bytes", rank.host_scratch},
          {"tiers", tiers}};
}

Json seconds_json(const StepTimes& times) {
  return {{"mean", times.mean},
          {"gather_wait", times.parts.gather_wait},
          {"gradient_wait", times.parts.gradient_wait},
          {"drain", times.parts.drain},
          {"verdict", times.parts.verdict},
          {"update", times.parts.update},
          {"other", times.other},
          {"compute_busy", times.compute}};
}

template <class Records, class Value>
Json column(const Records& records, Value&& value) {
  Json list = Json::array();
  for (const auto& record : records) list.push_back(value(record));
  return list;
}

Json resources_json(const RunRecord& run) {
  if (run.steps.empty()) return Json::object();
  Json json{{"step_s", seconds_of_step(run)}};
  if (const auto bound = step_bound(run)) {
    json["bound_s"] = bound->seconds;
    json["bound_by"] = bound->resource;
  }
  for (const Resource& resource : resources(run)) {
    Json& entry = json["busy"][resource.name];
    entry = {{"busy_s", resource.busy_s}, {"bytes", resource.bytes}};
    if (resource.at_rates) entry["at_probed_rates_s"] = *resource.at_rates;
  }
  return json;
}

Json run_json(const RunRecord& run) {
  const StepTimes times = step_times(run);
  Json json = {{"preset", run.options.preset},
               {"seed", run.options.seed},
               {"interrupted", run.interrupted},
               {"steps", run.steps.size()},
               {"micro_batches", run.options.accumulation},
               {"parameters", run.parameters},
               {"states_bytes", states_bytes(run)},
               {"tokens_per_step", run.tokens_per_step}};
  json["loss_first"] = run.steps.empty() ? Json() : Json(run.steps.front().loss);
  json["loss_last"] = run.steps.empty() ? Json() : Json(run.steps.back().loss);
  json["losses"] = column(run.steps, [](const StepRecord& step) { return step.loss; });
  json["grad_norms"] = column(run.steps, [](const StepRecord& step) { return step.grad_norm; });
  json["loss_scales"] = column(run.steps, [](const StepRecord& step) { return step.loss_scale; });
  json["learning_rates"] =
      column(run.steps, [](const StepRecord& step) { return step.learning_rate; });
  json["step_seconds"] = column(run.steps, [](const StepRecord& step) { return step.seconds; });
  json["skipped_steps"] = std::ranges::count_if(run.steps, &StepRecord::skipped);
  json["evals"] = column(run.evals, [](const EvalRecord& eval) {
    return Json{{"step", eval.step}, {"loss", eval.loss}};
  });
  json["seconds_per_step"] = times.median;
  json["seconds"] = seconds_json(times);
  json["tokens_per_s"] =
      times.median > 0 ? static_cast<double>(run.tokens_per_step) / times.median : 0;
  json["bytes_per_parameter_step"] = links_json(moved_per_parameter(run));
  json["floor_per_parameter_step"] = links_json(floor_per_parameter(run));
  json["storage"] = {{"backend", run.storage.backend},
                     {"direct", run.storage.direct},
                     {"registered", run.storage.registered},
                     {"page_bytes", run.storage.page_size.value},
                     {"verified", run.storage.verified}};
  json["resources"] = resources_json(run);
  json["schedule"] = {{"steps", run.schedule.steps},
                      {"followed", run.schedule.followed},
                      {"deviations", run.schedule.deviations},
                      {"gather_slots", run.schedule.gather_slots}};
  json["ranks"] = column(run.ranks, rank_json);
  if (!run.weights_hash.empty()) json["weights_hash"] = run.weights_hash;
  return json;
}

}  // namespace

void write_summary_json(const RunRecord& run, const std::string& path) {
  std::ofstream file(path, std::ios::trunc);
  file << run_json(run).dump(2) << '\n';
  file.close();
  if (!file) {
    throw strata::Error(strata::ErrorCode::io, "cannot write the summary",
                        {.errnum = errno, .path = path});
  }
}

void check_output_path(const std::string& path, std::string_view flag) {
  const std::ofstream file(path, std::ios::app);
  if (!file) {
    throw strata::Error(strata::ErrorCode::config, fmt::format("cannot write the file of {}", flag),
                        {.errnum = errno, .path = path});
  }
}

}  // namespace train_gpt
