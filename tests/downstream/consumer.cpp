// A use of the installed package through public headers only: one step of AdamW on one tensor, on
// one rank, and an error as a user would see it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "strata/communicator.hpp"
#include "strata/config.hpp"
#include "strata/device.hpp"
#include "strata/error.hpp"
#include "strata/model.hpp"
#include "strata/session.hpp"

namespace {

constexpr std::uint64_t kElems = 1000;
constexpr const char* kConfig = R"({
  "budgets": {"device": "64MiB", "host": "64MiB"},
  "precision": {"param": "fp32", "reduce": "fp32"},
  "optimizer": {"learning_rate": 0.125, "weight_decay": 0.0}
})";

// The first step of AdamW moves a weight by the learning rate against its gradient's sign.
bool trains_one_step() {
  strata::Model model;
  const auto unit = model.add_unit("unit", {{"weight", {kElems}}});
  auto session = strata::Session::open(model, strata::Config::from_json(kConfig, "consumer"),
                                       strata::make_self_communicator());
  session.initialize(unit, [](const strata::TensorSlice&, std::span<float> values) {
    std::fill(values.begin(), values.end(), 1.0F);
  });

  const auto stream = session.device().create_stream("compute");
  auto step = session.begin_step();
  auto gradients = session.gradients(unit, stream);
  auto* gradient = static_cast<float*>(gradients[strata::TensorId{0}].data);
  session.device().launch(stream, [gradient] { std::fill_n(gradient, kElems, 2.0F); });
  session.reduce(std::move(gradients), stream);
  const bool updated = step.end().updated;

  std::uint64_t right = 0;
  session.read(unit, "param", [&](const strata::TensorSlice&, std::span<const float> values) {
    right += std::count_if(values.begin(), values.end(),
                           [](float value) { return std::abs(value - 0.875F) < 1e-6F; });
  });
  session.close();
  return updated && right == kElems;
}

bool reports_errors() {
  try {
    strata::Config::from_json(R"({"no_such_key": 1})", "consumer");
  } catch (const strata::Error& error) {
    return error.code() == strata::ErrorCode::config &&
           std::string(error.what()).find("no_such_key") != std::string::npos;
  }
  return false;
}

}  // namespace

int main() {
  const bool trained = trains_one_step();
  const bool reported = reports_errors();
  std::printf("consumer: one step %s, error %s\n", trained ? "ok" : "WRONG",
              reported ? "ok" : "WRONG");
  return trained && reported ? 0 : 1;
}
