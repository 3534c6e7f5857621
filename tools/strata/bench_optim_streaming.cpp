#include "bench_optim_streaming.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "paced/paced_disk.hpp"
#include "session/factory.hpp"
#include "strata/session.hpp"

namespace strata::tool {
namespace {

// Of NVMe drives: they read faster than they write.
constexpr double kReadRateOverWriteRate = 4.0 / 3;
constexpr std::uint64_t kUnitElems = 4 * kStreamedTileElems;
// fp32 master and moments; the parameter and the gradient rest on the host.
constexpr std::uint64_t kStateBytes = 12;
constexpr const char* kDirectory = "/paced";
constexpr std::uint16_t kSmall = 0x3A83;  // about 1e-3 in bf16

Model model_of(std::uint64_t params) {
  Model model;
  for (std::uint64_t begin = 0; begin < params; begin += kUnitElems) {
    model.add_unit(fmt::format("unit{}", begin / kUnitElems),
                   {{"w", {std::min(kUnitElems, params - begin)}}});
  }
  return model;
}

Config config_of(const BenchOptimPlan& plan) {
  const Bytes states = plan.streamed_params * Bytes{kStateBytes};
  Config config;
  config.device.kind = Config::DeviceKind::cpu;
  config.budgets = {.device = 1_GiB, .host = 1_GiB + states, .nvme = 1_GiB + 2 * states};
  config.placement = {
      .param = {0, 1, 0}, .grad = {0, 1, 0}, .optimizer = {.device = 0, .host = 0, .nvme = 1}};
  config.nvme.directories = {kDirectory};
  config.engine.tile = kStreamedTileElems * Bytes{4};
  config.engine.workers = plan.threads;
  config.engine.look_ahead = 0;  // end() waits for the update
  return config;
}

PacedDisk::Options disk_of(std::uint64_t states_bytes, double io_seconds) {
  // io_seconds = states / read + states / write
  const double write =
      static_cast<double>(states_bytes) * (1 + 1 / kReadRateOverWriteRate) / io_seconds;
  return {.pace = {.read_bytes_per_second = kReadRateOverWriteRate * write,
                   .write_bytes_per_second = write}};
}

// One step whose gradients are all the same small number.
StepResult run_step(Session& session, StreamId stream) {
  Step step = session.begin_step();
  for (std::uint32_t u = 0; u < session.model().units().size(); ++u) {
    GradientLease gradients = session.gradients(UnitId{u}, stream);
    const GradientView view = gradients[TensorId{0}];
    session.device().launch(stream, [view] {
      std::fill_n(static_cast<std::uint16_t*>(view.data), view.count_elems, kSmall);
    });
    session.reduce(std::move(gradients), stream);
  }
  return step.end();
}

}  // namespace

StreamingResult measure_streaming(const BenchOptimPlan& plan, double kernel_seconds,
                                  const std::function<void()>& check) {
  const std::uint64_t states_bytes = plan.streamed_params * kStateBytes;
  const PacedDisk::Options disk = disk_of(states_bytes, plan.disk_times * kernel_seconds);
  StreamingResult result{.params = plan.streamed_params,
                         .workers = plan.threads,
                         .disk_read_bytes_per_s = disk.pace.read_bytes_per_second,
                         .disk_write_bytes_per_s = disk.pace.write_bytes_per_second,
                         .io_seconds = plan.disk_times * kernel_seconds,
                         .kernel_seconds = kernel_seconds};
  const Model model = model_of(plan.streamed_params);
  const Config config = config_of(plan);
  Session session = Session::open(model, config,
                                  {.communicator = make_self_communicator(),
                                   .device = make_cpu_device(config.budgets.device),
                                   .block_io = std::make_unique<PacedDisk>(disk)});
  for (std::uint32_t u = 0; u < model.units().size(); ++u) {
    check();
    session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
      std::fill(values.begin(), values.end(), 0.01F);
    });
  }
  const StreamId stream = session.device().create_stream("compute");
  std::vector<double> seconds;
  std::vector<double> fractions;
  for (unsigned round = 0; round <= plan.rounds; ++round) {
    check();
    const StepResult step = run_step(session, stream);
    STRATA_ASSERT(
        step.bytes.nvme_read.value == states_bytes && step.bytes.nvme_written.value == states_bytes,
        fmt::format("an update of {} parameters read {} and wrote {} bytes", result.params,
                    step.bytes.nvme_read.value, step.bytes.nvme_written.value));
    if (round == 0) continue;  // patterns are recorded and pools filled
    seconds.push_back(step.seconds.update);
    fractions.push_back(std::max(result.io_seconds, kernel_seconds) / step.seconds.update);
    const auto params = static_cast<double>(result.params);
    result.read_bytes_per_param = static_cast<double>(step.bytes.nvme_read.value) / params;
    result.written_bytes_per_param = static_cast<double>(step.bytes.nvme_written.value) / params;
  }
  session.close();
  result.seconds = spread_of(seconds);
  result.fraction_of_bound = spread_of(fractions);
  return result;
}

}  // namespace strata::tool
