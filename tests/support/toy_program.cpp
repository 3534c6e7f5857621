#include "support/toy_program.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/rng.hpp"
#include "support/pinned.hpp"

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

// Bytes of the largest unit, in the widest type.
std::size_t largest_unit_bytes(const Model& model) {
  std::uint64_t most = 0;
  for (const UnitSpec& unit : model.units()) {
    std::uint64_t elems = 0;
    for (const TensorSpec& tensor : unit.tensors) elems += tensor.count_elems();
    most = std::max(most, elems);
  }
  return most * size_of(DType::fp32).value;
}

// Where the CPU computes for a device whose memory it cannot address: copies of the tensors, on the
// host. Where it can, the copies are the tensors themselves.
class HostCopies {
 public:
  HostCopies(Device& device, StreamId stream, const Model& model)
      : device_(device),
        stream_(stream),
        direct_(device.host_addressable()),
        inputs_(device, std::vector<std::byte>(direct_ ? 0 : largest_unit_bytes(model))),
        outputs_(device, std::vector<std::byte>(direct_ ? 0 : largest_unit_bytes(model))) {}

  // A tensor to read, in stream order. Copies of one unit stand side by side.
  const void* input(const TensorView& view) {
    if (direct_) return view.data;
    std::byte* const copy = take(inputs_, inputs_used_, view.dtype, view.count_elems);
    device_.copy(stream_, copy, view.data, size_of_view(view.dtype, view.count_elems),
                 CopyKind::device_to_host);
    return copy;
  }
  // Where to write a tensor that deliver() brings to the device.
  void* output(const GradientView& view) {
    if (direct_) return view.data;
    return take(outputs_, outputs_used_, view.dtype, view.count_elems);
  }
  void deliver(const GradientView& view, const void* output) {
    if (direct_) return;
    device_.copy(stream_, view.data, output, size_of_view(view.dtype, view.count_elems),
                 CopyKind::host_to_device);
  }
  // The next unit: its copies may take the place of the last one's, in stream order.
  void next_unit() { inputs_used_ = outputs_used_ = 0; }

 private:
  static std::byte* take(Pinned& memory, std::size_t& used, DType dtype, std::uint64_t count) {
    std::byte* const taken = memory.data() + used;
    used += size_of_view(dtype, count).value;
    return taken;
  }

  Device& device_;
  const StreamId stream_;
  const bool direct_;
  Pinned inputs_;
  Pinned outputs_;
  std::size_t inputs_used_ = 0;
  std::size_t outputs_used_ = 0;
};

// What a step does differently, the same on every rank.
class Deviation {
 public:
  Deviation(std::uint64_t seed, std::uint32_t step) : seed_(rng::at(seed, step)) {
    // Every other step or so is as it always is, so that schedules are followed in between.
    none_ = seed == 0 || draw(0) % 2 == 0;
  }

  bool evaluates_first() const { return one_in(3, 1); }
  bool has_fewer_micro_batches() const { return one_in(4, 2); }
  bool exits_early() const { return one_in(4, 3); }
  bool leaves_out(std::uint32_t unit) const { return one_in(5, 100 + unit); }
  bool gathers_twice(std::uint32_t unit) const { return one_in(5, 200 + unit); }
  bool holds_longer(std::uint32_t unit) const { return one_in(5, 300 + unit); }

 private:
  std::uint64_t draw(std::uint64_t what) const { return rng::at(seed_, what); }
  bool one_in(std::uint64_t n, std::uint64_t what) const { return !none_ && draw(what) % n == 0; }

  std::uint64_t seed_;
  bool none_ = true;
};

class Program {
 public:
  Program(Session& session, const ToyOptions& options)
      : session_(session),
        options_(options),
        rank_(session.communicator().rank().value),
        stream_(session.device().create_stream("compute")),
        scratch_(session.scratch(Tier::device, Bytes{256})),
        copies_(session.device(), stream_, session.model()) {}

  // Launched work uses this object and its scratch; an error may leave some of it under way.
  ~Program() {
    try {
      session_.device().synchronize(session_.device().record(stream_));
    } catch (const Error&) {
      // A device that has failed runs nothing any more.
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  StepResult step(std::uint32_t index) {
    const Deviation deviation(options_.deviations, index);
    if (deviation.evaluates_first()) {
      auto step = session_.begin_step({.pattern = "eval"});
      forward_all({});
      step.end();
    }
    auto step = session_.begin_step({.pattern = "train",
                                     .micro_batches = options_.micro_batches,
                                     .gradient_scale = 1.0 / session_.communicator().size(),
                                     .groups = options_.groups});
    loss_scale_ = static_cast<float>(session_.loss_scale());
    const std::uint32_t count = deviation.has_fewer_micro_batches() ? 1 : options_.micro_batches;
    for (std::uint32_t m = 0; m < count; ++m) micro_batch(index, m, deviation);
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
  std::uint32_t unit_count() const {
    return static_cast<std::uint32_t>(session_.model().units().size());
  }

  void forward_all(const std::optional<Deviation>& deviation) {
    GatherLease held;
    for (std::uint32_t u = 0; u < unit_count(); ++u) {
      if (deviation && deviation->leaves_out(u)) continue;
      if (deviation && deviation->gathers_twice(u)) {
        const GatherLease first = forward(UnitId{u});
      }
      GatherLease lease = forward(UnitId{u});
      held = {};
      if (deviation && deviation->holds_longer(u)) held = std::move(lease);
    }
  }

  void micro_batch(std::uint32_t step, std::uint32_t m, const Deviation& deviation) {
    const std::uint32_t units = unit_count();
    forward_all(deviation);
    if (deviation.exits_early()) return;
    for (std::uint32_t u = units; u-- > 0;) {
      if (options_.skip_last_unit_in_odd_steps && u == units - 1 && step % 2 == 1) continue;
      backward(UnitId{u}, step, m);
    }
  }

  // Reads the weights and folds them into scratch, as activations would.
  GatherLease forward(UnitId unit) {
    GatherLease weights = session_.gather(unit, stream_);
    const TensorView view = weights[TensorId{0}];
    copies_.next_unit();
    const void* const data = copies_.input(view);
    const Bytes size = size_of_view(view.dtype, view.count_elems);
    const bool direct = data == view.data;
    auto* const activation =
        direct ? reinterpret_cast<float*>(scratch_.memory().data()) : &host_activation_;
    const Access accesses[] = {{data, size, false}, {activation, Bytes{4}, true}};
    session_.device().launch(
        stream_, [=] { *activation = load(data, view.dtype, view.count_elems / 2); }, accesses);
    return weights;
  }

  void backward(UnitId unit, std::uint32_t step, std::uint32_t m) {
    const GatherLease weights = session_.gather(unit, stream_);
    GradientLease gradients = session_.gradients(unit, stream_);
    const auto& tensors = session_.model().unit(unit).tensors;
    copies_.next_unit();
    for (std::uint32_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t].trainable) continue;
      const TensorView w = weights[TensorId{t}];
      const GradientView g = gradients[TensorId{t}];
      const bool spoil = static_cast<std::int64_t>(step) == options_.nonfinite_step &&
                         (options_.nonfinite_micro_batch < 0 ||
                          options_.nonfinite_micro_batch == static_cast<std::int64_t>(m)) &&
                         rank_ == options_.nonfinite_rank && t == 0 && unit.value == 1;
      const void* const weight = copies_.input(w);
      void* const gradient = copies_.output(g);
      const Access accesses[] = {{weight, size_of_view(w.dtype, w.count_elems), false},
                                 {gradient, size_of_view(g.dtype, g.count_elems), true}};
      session_.device().launch(
          stream_,
          [=, this, loss_scale = loss_scale_] {
            for (std::uint64_t i = 0; i < g.count_elems; ++i) {
              const float value = toy_gradient(options_.seed, step, m, rank_, unit, TensorId{t}, i,
                                               load(weight, w.dtype, i));
              store(gradient, g.dtype, i, loss_scale * value);
            }
            if (spoil) store(gradient, g.dtype, 3, std::numeric_limits<float>::quiet_NaN());
          },
          accesses);
      copies_.deliver(g, gradient);
    }
    session_.reduce(std::move(gradients), stream_);
  }

  Session& session_;
  const ToyOptions options_;
  const std::uint32_t rank_;
  const StreamId stream_;
  ScratchLease scratch_;
  float host_activation_ = 0;
  float loss_scale_ = 1;  // of the step
  HostCopies copies_;
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
      if (!options.between_steps) return;
      session.synchronize();
      options.between_steps(completed);
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
