// The smallest trainer on Strata: a network with one hidden layer learns y = sin(x). Strata keeps
// the weights, gradients and optimizer states wherever the configuration places them, and shards
// them over the ranks; the trainer brings a unit to the device, enqueues math, and lets it go.
//
//   linking_example [CONFIG.json]      alone, or under mpirun
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "strata/error.hpp"
#include "strata/session.hpp"

namespace {

constexpr int kHidden = 32;
constexpr int kBatch = 64;
constexpr int kSteps = 400;
constexpr strata::TensorId kWeight{0};
constexpr strata::TensorId kBias{1};

// Activations of one batch.
struct Batch {
  std::array<float, kBatch> x, y;
  std::array<std::array<float, kHidden>, kBatch> act;    // tanh(x w + b)
  std::array<std::array<float, kHidden>, kBatch> d_act;  // the loss's gradient there
  double loss = 0;
};

// The parameters are fp32 here (Config::precision), so views are plain arrays of float.
const float* values(const strata::GatherLease& unit, strata::TensorId tensor) {
  return static_cast<const float*>(unit[tensor].data);
}
float* values(strata::GradientLease& unit, strata::TensorId tensor) {
  return static_cast<float*>(unit[tensor].data);
}

void hidden_forward(const float* w, const float* b, Batch& batch) {
  for (int i = 0; i < kBatch; ++i) {
    for (int h = 0; h < kHidden; ++h) batch.act[i][h] = std::tanh(batch.x[i] * w[h] + b[h]);
  }
}

// Forward, loss and backward of y = act v + c at once; adds to the gradients dv and dc.
void output_forward_backward(const float* v, const float* c, float* dv, float* dc, Batch& batch) {
  batch.loss = 0;
  for (int i = 0; i < kBatch; ++i) {
    float error = *c - batch.y[i];
    for (int h = 0; h < kHidden; ++h) error += batch.act[i][h] * v[h];
    batch.loss += 0.5 * error * error / kBatch;
    *dc += error;
    for (int h = 0; h < kHidden; ++h) {
      dv[h] += error * batch.act[i][h];
      batch.d_act[i][h] = error * v[h];
    }
  }
}

void hidden_backward(float* dw, float* db, const Batch& batch) {
  for (int i = 0; i < kBatch; ++i) {
    for (int h = 0; h < kHidden; ++h) {
      const float d = batch.d_act[i][h] * (1 - batch.act[i][h] * batch.act[i][h]);
      dw[h] += d * batch.x[i];
      db[h] += d;
    }
  }
}

void train(const strata::Config& config) {
  // 1. A model is units of named tensors. A unit is what is gathered together.
  strata::Model model;
  const auto hidden = model.add_unit("hidden", {{"w", {kHidden}}, {"b", {kHidden}}});
  const auto output = model.add_unit("output", {{"v", {kHidden}}, {"c", {1}}});

  Batch batch;  // before the session, so that it outlives the work that streams still run

  // 2. A session proves that everything fits its budgets, or refuses with the numbers.
  auto session = strata::Session::open(model, config, strata::make_communicator(config));
  const unsigned rank = session.communicator().rank().value;
  strata::Device& device = session.device();
  const strata::StreamId stream = device.create_stream("compute");

  // 3. Each rank fills the elements that it holds, and no others.
  for (const auto unit : {hidden, output}) {
    session.initialize(unit, [](const strata::TensorSlice& slice, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = 0.5F * std::sin(12.9F * static_cast<float>(slice.offset_elems + i + 1));
      }
    });
  }

  std::minstd_rand random(1 + rank);
  std::uniform_real_distribution<float> angle(-3, 3);
  const double samples = kBatch * session.communicator().size();
  for (int i = 0; i < kSteps; ++i) {
    for (float& x : batch.x) x = angle(random);
    std::transform(batch.x.begin(), batch.x.end(), batch.y.begin(),
                   [](float x) { return std::sin(x); });

    // 4. A step: gather a unit, enqueue work on it, let the lease end; reduce its gradients.
    strata::Step step = session.begin_step({.gradient_scale = 1 / samples, .groups = {}});
    {
      const auto p = session.gather(hidden, stream);
      const float *w = values(p, kWeight), *b = values(p, kBias);
      device.launch(stream, [=, &batch] { hidden_forward(w, b, batch); });
    }
    {
      const auto p = session.gather(output, stream);
      auto g = session.gradients(output, stream);
      const float *v = values(p, kWeight), *c = values(p, kBias);
      float *dv = values(g, kWeight), *dc = values(g, kBias);
      device.launch(stream, [=, &batch] { output_forward_backward(v, c, dv, dc, batch); });
      session.reduce(std::move(g), stream);
    }
    {
      auto g = session.gradients(hidden, stream);
      float *dw = values(g, kWeight), *db = values(g, kBias);
      device.launch(stream, [=, &batch] { hidden_backward(dw, db, batch); });
      session.reduce(std::move(g), stream);
    }
    const strata::StepResult result = step.end();  // all ranks agree, then the weights change

    if (rank == 0 && (i % 50 == 0 || i + 1 == kSteps)) {
      std::printf("step %3d  loss %.5f  gradient norm %.4f\n", i, batch.loss, result.grad_norm);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    strata::Config config;
    if (argc > 1) config = strata::Config::from_file(argv[1]);
    config.precision = {strata::DType::fp32, strata::DType::fp32};
    config.device.kind = strata::Config::DeviceKind::cpu;  // whose memory this math addresses
    config.optimizer.learning_rate = 0.01;
    train(config);
  } catch (const strata::Error& error) {
    std::fprintf(stderr, "linking_example: %s\n", error.what());
    return 1;
  }
  return 0;
}
