#include <cmath>
#include <nlohmann/json.hpp>

#include "bench_optim_report.hpp"

namespace strata::tool {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity: where nothing may be wrong and something is.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json("inf"); }

void add(Json& json, const std::string& name, const Spread& spread, double scale = 1) {
  json[name] = scale * spread.median;
  json[name + "_80"] = {scale * spread.low, scale * spread.high};
}

Json errors_json(const KernelResult& result) {
  Json json;
  for (const StateError& error : result.errors) {
    json[error.state] = {{"bound_fraction", number(error.fraction)},
                         {"largest_operand", error.operand},
                         {"typical_bound_fraction", number(error.fraction_of_typical)}};
  }
  return json;
}

Json kernel_json(const KernelResult& result) {
  const KernelCase& what = result.what;
  const auto bytes = static_cast<double>(what.bytes_per_param().value);
  Json json{{"name", name_of(what.rule)},
            {"grad", name_of(what.gradient)},
            {"param", name_of(what.param_type())},
            {"weights", name_of(what.weights)}};
  json["moments"] = moments_of(what.rule) == 0 ? Json() : Json(name_of(what.moments));
  json["bytes_per_param"] = what.bytes_per_param().value;
  add(json, "params_per_s", result.params_per_s);
  add(json, "bytes_per_s", result.params_per_s, bytes);
  add(json, "fraction_of_bound", result.fraction_of_bound);
  json["passes"] = what.passes();
  add(json, "four_pass_params_per_s", result.four_pass_params_per_s);
  json["max_error_bound_fraction"] = number(worst_of(result).fraction);
  json["errors"] = errors_json(result);
  return json;
}

Json streaming_json(const StreamingResult& streaming) {
  Json json;
  add(json, "fraction_of_bound", streaming.fraction_of_bound);
  json["read_bytes_per_param"] = streaming.read_bytes_per_param;
  json["written_bytes_per_param"] = streaming.written_bytes_per_param;
  json["params"] = streaming.params;
  json["workers"] = streaming.workers;
  json["disk_read_bytes_per_s"] = streaming.disk_read_bytes_per_s;
  json["disk_write_bytes_per_s"] = streaming.disk_write_bytes_per_s;
  json["io_s"] = streaming.io_seconds;
  json["kernel_s"] = streaming.kernel_seconds;
  add(json, "update_s", streaming.seconds);
  return json;
}

}  // namespace

std::string bench_optim_json(const BenchOptimPlan& plan, const BenchOptimResults& results) {
  Json json;
  add(json, "bandwidth_bytes_per_s", results.bandwidth_bytes_per_s);
  json["instruction_set"] = results.instruction_set;
  json["threads"] = plan.threads;
  json["params"] = plan.params;
  json["rounds"] = plan.rounds;
  json["page_bytes"] = results.page_size.value;
  json["kernels"] = Json::array();
  for (const KernelResult& kernel : results.kernels) json["kernels"].push_back(kernel_json(kernel));
  json["streaming"] = streaming_json(results.streaming);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace strata::tool
