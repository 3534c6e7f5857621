#include "support/toy_program.hpp"

#include <limits>

#include "base/rng.hpp"

namespace strata::test {
namespace {

std::uint64_t element_key(std::uint64_t seed, UnitId unit, TensorId tensor) {
  return rng::at(rng::at(seed, unit.value), tensor.value);
}

float load(const void* data, DType dtype, std::uint64_t index) {
  float value = 0;
  const auto* at = static_cast<const std::byte*>(data) + index * size_of(dtype).value;
  convert(&value, DType::fp32, at, dtype, 1);
  return value;
}

void store(void* data, DType dtype, std::uint64_t index, float value) {
  convert(static_cast<std::byte*>(data) + index * size_of(dtype).value, dtype, &value, DType::fp32,
          1);
}

Bytes size_of_view(DType dtype, std::uint64_t count) { return count * size_of(dtype); }

class Program {
 public:
  Program(Session& session, const ToyOptions& options)
      : session_(session),
        options_(options),
        rank_(session.communicator().rank().value),
        stream_(session.device().create_stream("compute")),
        scratch_(session.scratch(Tier::device, Bytes{256})) {}

  // Launched work uses this object and its scratch; an error may leave some of it under way.
  ~Program() { session_.device().synchronize(session_.device().record(stream_)); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  StepResult step(std::uint32_t index) {
    auto step = session_.begin_step({.pattern = "train",
                                     .micro_batches = options_.micro_batches,
                                     .gradient_scale = 1.0 / session_.communicator().size(),
                                     .groups = {}});
    for (std::uint32_t m = 0; m < options_.micro_batches; ++m) micro_batch(index, m);
    return step.end();
  }

  void initialize() {
    for (std::uint32_t u = 0; u < session_.model().units().size(); ++u) {
      session_.initialize(UnitId{u}, [&](const TensorSlice& slice, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = toy_initial(options_.seed, slice.unit, slice.tensor, slice.offset_elems + i);
        }
      });
    }
  }

 private:
  void micro_batch(std::uint32_t step, std::uint32_t m) {
    const auto units = static_cast<std::uint32_t>(session_.model().units().size());
    for (std::uint32_t u = 0; u < units; ++u) forward(UnitId{u});
    for (std::uint32_t u = units; u-- > 0;) {
      if (options_.skip_last_unit_in_odd_steps && u == units - 1 && step % 2 == 1) continue;
      backward(UnitId{u}, step, m);
    }
  }

  // Reads the weights and folds them into scratch, as activations would.
  void forward(UnitId unit) {
    const GatherLease weights = session_.gather(unit, stream_);
    const TensorView view = weights[TensorId{0}];
    auto* activation = reinterpret_cast<float*>(scratch_.memory().data());
    const Bytes size = size_of_view(view.dtype, view.count_elems);
    const Access accesses[] = {{view.data, size, false}, {activation, Bytes{4}, true}};
    session_.device().launch(
        stream_, [=] { *activation = load(view.data, view.dtype, view.count_elems / 2); },
        accesses);
  }

  void backward(UnitId unit, std::uint32_t step, std::uint32_t m) {
    const GatherLease weights = session_.gather(unit, stream_);
    GradientLease gradients = session_.gradients(unit, stream_);
    const auto& tensors = session_.model().unit(unit).tensors;
    for (std::uint32_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].trainable) continue;
      const TensorView w = weights[TensorId{t}];
      const GradientView g = gradients[TensorId{t}];
      const bool spoil = static_cast<std::int64_t>(step) == options_.nonfinite_step &&
                         rank_ == options_.nonfinite_rank && t == 0 && unit.value == 1;
      const Access accesses[] = {{w.data, size_of_view(w.dtype, w.count_elems), false},
                                 {g.data, size_of_view(g.dtype, g.count_elems), true}};
      session_.device().launch(
          stream_,
          [=, this] {
            for (std::uint64_t i = 0; i < g.count_elems; ++i) {
              store(g.data, g.dtype, i,
                    toy_gradient(options_.seed, step, m, rank_, unit, TensorId{t}, i,
                                 load(w.data, w.dtype, i)));
            }
            if (spoil) store(g.data, g.dtype, 3, std::numeric_limits<float>::quiet_NaN());
          },
          accesses);
    }
    session_.reduce(std::move(gradients), stream_);
  }

  Session& session_;
  const ToyOptions options_;
  const std::uint32_t rank_;
  const StreamId stream_;
  ScratchLease scratch_;
};

}  // namespace

Model toy_model(const ToyOptions& options) {
  const std::uint64_t n = options.scale_elems;
  Model model;
  model.add_unit("embed", {{"table", {n / 100, 100}}, {"norm", {7}}});
  model.add_unit("block.0", {{"wq", {n / 10, 5}}, {"bias", {13}}, {"wk", {n / 20, 9}}});
  model.add_unit("block.1", {{"w", {n / 50, 41}}, {"frozen", {n / 7 + 1}, false}, {"b", {1}}});
  model.add_unit("head", {{"tiny", {3}}});
  return model;
}

float toy_initial(std::uint64_t seed, UnitId unit, TensorId tensor, std::uint64_t index) {
  return static_cast<float>(rng::uniform(element_key(seed, unit, tensor), index) - 0.5);
}

float toy_gradient(std::uint64_t seed, std::uint32_t step, std::uint32_t micro_batch,
                   std::uint32_t rank, UnitId unit, TensorId tensor, std::uint64_t index,
                   float weight) {
  const std::uint64_t key =
      rng::at(rng::at(rng::at(element_key(seed + 1, unit, tensor), step), micro_batch), rank);
  return weight * 0.5F + static_cast<float>(rng::uniform(key, index) - 0.5);
}

ToyResult run_toy(const ToyOptions& options, const Config& config, Backends backends,
                  const std::function<void(Session&)>& inspect) {
  Session session = Session::open(toy_model(options), config, std::move(backends),
                                  {.device_scratch = Bytes{256}, .host_scratch = {}, .log = {}});
  ToyResult result;
  {
    Program program(session, options);
    program.initialize();
    const auto tell = [&](std::uint32_t completed) {
      if (options.between_steps) options.between_steps(completed);
    };
    tell(0);
    for (std::uint32_t i = 0; i < options.steps; ++i) {
      result.steps.push_back(program.step(i));
      tell(i + 1);
    }
    result.weights_hash = session.weights_hash();
    result.states_hash = session.weights_hash(true);
    result.plan = session.memory_plan();
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      result.usage[static_cast<std::size_t>(tier)] = session.usage(tier);
    }
    result.bytes = session.bytes_moved();
    if (inspect) inspect(session);
  }
  session.close();
  return result;
}

Config toy_config(const TierFractions& param, const TierFractions& grad,
                  const TierFractions& optimizer) {
  Config config;
  config.budgets = {.device = 64_MiB, .host = 64_MiB, .nvme = 256_MiB};
  config.placement = {param, grad, optimizer};
  config.nvme.directories = {"/nvme"};
  config.engine.tile = 256_KiB;
  config.optimizer.clip_norm = 1.0;
  config.communicator.timeout_s = 30;
  return config;
}

}  // namespace strata::test
