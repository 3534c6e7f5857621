#include <nlohmann/json.hpp>

#include "bench_io_report.hpp"

namespace strata::tool {
namespace {

using Json = nlohmann::ordered_json;

Json rates_json(const ReadsAndWrites& rates) {
  return {{"read_bytes_per_s", rates.read.rate()}, {"write_bytes_per_s", rates.write.rate()}};
}

// Adds "<name>" and "<name>_95", the interval; null where there is nothing to compare with.
void add_ratio(Json& json, const std::string& name, const Series& series, const Series& other) {
  if (other.empty()) {
    json[name] = nullptr;
    json[name + "_95"] = nullptr;
    return;
  }
  const Ratio ratio = ratio_of(series, other);
  json[name] = ratio.value;
  json[name + "_95"] = {ratio.interval.low, ratio.interval.high};
}

Json sequential_json(const BenchIoPlan& plan, const BenchIoResults& results) {
  Json json = rates_json(results.library);
  add_ratio(json, "read_vs_bare", results.library.read, results.bare.read);
  add_ratio(json, "write_vs_bare", results.library.write, results.bare.write);
  json["tile_bytes"] = plan.sets[results.best.set].tile.value;
  json["queue_depth"] = results.best.depth;
  json["verified"] = rates_json(results.verified);
  add_ratio(json["verified"], "read_vs_bare", results.verified.read, results.bare.read);
  add_ratio(json["verified"], "write_vs_bare", results.verified.write, results.bare.write);
  json["windows"] = plan.main_rounds;
  json["window_bytes"] = plan.window.value;
  return json;
}

Json many_json(const BenchIoPlan& plan, const BenchIoResults& results) {
  Json json = rates_json(results.many);
  add_ratio(json, "read_vs_sequential", results.many.read, results.beside_many.read);
  add_ratio(json, "write_vs_sequential", results.many.write, results.beside_many.write);
  json["count"] = plan.many.count;
  json["tensor_bytes"] = plan.many.tile.value;
  return json;
}

Json bare_json(const BenchIoResults& results) {
  if (results.bare.read.empty()) return {{"missing", results.why_no_bare_loop}};
  return rates_json(results.bare);
}

Json mix_json(const BenchIoResults& results) {
  Json json{{"bytes_per_s", results.mix.rate()}};
  add_ratio(json, "vs_bare", results.mix, results.bare_mix);
  return json;
}

Json latency_json(const std::vector<double>& seconds) {
  return {{"p50", percentile(seconds, 0.5)}, {"p99", percentile(seconds, 0.99)}};
}

Json cpu_json(const BenchIoResults& results) {
  Json json{{"checksum_off", results.library.cpu_s_per_gib()},
            {"checksum_on", results.verified.cpu_s_per_gib()}};
  json["bare"] = results.bare.read.empty() ? Json() : Json(results.bare.cpu_s_per_gib());
  return json;
}

Json sweep_json(const BenchIoPlan& plan, const BenchIoResults& results) {
  Json json = Json::array();
  for (const SweepResult& result : results.sweep) {
    if (result.rates.read.empty()) continue;
    Json entry{{"tile_bytes", plan.sets[result.pair.set].tile.value},
               {"queue_depth", result.pair.depth}};
    entry.update(rates_json(result.rates));
    json.push_back(entry);
  }
  return json;
}

Json directories_json(const BenchIoOptions& options, const BenchIoResults& results) {
  Json json = Json::array();
  for (std::size_t i = 0; i < results.directories.size(); ++i) {
    Json entry{{"path", options.directories[i]}};
    entry.update(rates_json(results.directories[i]));
    json.push_back(entry);
  }
  return json;
}

}  // namespace

std::string bench_io_json(const BenchIoOptions& options, const BenchIoPlan& plan,
                          const BenchIoResults& results) {
  Json json;
  json["sequential"] = sequential_json(plan, results);
  json["many_tensors"] = many_json(plan, results);
  json["cpu_s_per_gib"] = cpu_json(results);
  json["page_bytes"] = results.page_size.value;
  json["registered"] = results.registered;
  json["backend"] = results.io_name;
  json["bare_loop"] = bare_json(results);
  json["mix"] = mix_json(results);
  json["latency_s"] = {{"read", latency_json(results.read_latency_s)},
                       {"write", latency_json(results.write_latency_s)}};
  json["sweep"] = sweep_json(plan, results);
  json["directories"] = directories_json(options, results);
  json["weights"] = weights_of(results);
  json["file_bytes"] = plan.file_bytes().value;
  json["announced_write_bytes"] = plan.bytes_to_write().value;
  json["written_bytes"] = results.bytes_written.value;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace strata::tool
