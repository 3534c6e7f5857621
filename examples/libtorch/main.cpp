// A trainer with an autograd, an allocator and streams of its own, on Strata: libtorch computes a
// residual network that learns a fixed random one. Parameters and gradients are torch tensors that
// alias memory which the session lends; optimizer states are wherever the configuration says.
//
//   libtorch_example [CONFIG.json] [STEPS]
//
// On a GPU torch's current stream is made known to the session, and torch's kernels are enqueued on
// it; on a CPU they run inside Device::launch, in stream order.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "strata/cuda_interop.hpp"
#include "strata/session.hpp"
#if defined(EXAMPLE_WITH_CUDA)
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kBatch = 128;
constexpr int kLayers = 4;
constexpr strata::TensorId kWeight{0};
constexpr strata::TensorId kBias{1};

torch::ScalarType torch_type(strata::DType dtype) {
  switch (dtype) {
    case strata::DType::fp32: return torch::kFloat32;
    case strata::DType::bf16: return torch::kBFloat16;
    case strata::DType::fp16: return torch::kFloat16;
  }
  return torch::kFloat32;
}

// Torch's view of lent memory. It owns nothing: it must not outlive the lease, and torch's caching
// allocator neither knows nor reuses the bytes.
torch::Tensor alias(void* data, strata::DType dtype, torch::IntArrayRef shape,
                    torch::Device where) {
  return torch::from_blob(data, shape,
                          torch::TensorOptions().dtype(torch_type(dtype)).device(where));
}

class Trainer {
 public:
  Trainer(strata::Session& session, const std::vector<strata::UnitId>& layers)
      : session_(session),
        layers_(layers),
        on_gpu_(!session.device().host_addressable()),
        where_(place_of(session.device())),
        stream_(own_stream()) {}
  ~Trainer() {
    try {
      finish();
    } catch (const strata::Error&) {
      // A device that has failed runs nothing any more.
    }
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  double step(std::uint64_t index) {
    strata::Step step =
        session_.begin_step({.gradient_scale = 1.0 / session_.communicator().size(), .groups = {}});
    run([&] {
      torch::manual_seed(index * 1000 + session_.communicator().rank().value);
      activations_.assign(1, torch::randn({kBatch, kWidth}, where_));
      target_ = torch::sin(activations_[0]);
    });
    // Forward keeps the input of every layer; backward computes the layer again, so that autograd
    // never holds on to parameters that the session has taken back.
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const strata::GatherLease lease = session_.gather(layers_[i], stream_);
      const Layer layer = layer_of(lease);
      run([this, layer, i] {
        torch::NoGradGuard no_grad;
        activations_.push_back(apply(layer.weight, layer.bias, activations_[i]));
      });
    }
    run([this, scale = session_.loss_scale()] {
      torch::Tensor output = activations_.back().detach().requires_grad_();
      const torch::Tensor loss = torch::mse_loss(output, target_);
      d_ = torch::autograd::grad({loss * scale}, {output})[0];
      loss_ = loss.detach().cpu();
    });
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const strata::GatherLease lease = session_.gather(layers_[i], stream_);
      strata::GradientLease gradients = session_.gradients(layers_[i], stream_);
      const Layer layer = layer_of(lease);
      const Layer gradient = {view_of(gradients[kWeight], {kWidth, kWidth}),
                              view_of(gradients[kBias], {kWidth})};
      run([this, layer, gradient, i]() mutable {
        torch::Tensor input = activations_[i].detach().requires_grad_();
        torch::Tensor weight = layer.weight.detach().requires_grad_();
        torch::Tensor bias = layer.bias.detach().requires_grad_();
        const torch::Tensor output = apply(weight, bias, input);
        const auto grads = torch::autograd::grad({output}, {input, weight, bias}, {d_});
        d_ = grads[0];
        torch::NoGradGuard no_grad;
        gradient.weight.copy_(grads[1]);
        gradient.bias.copy_(grads[2]);
      });
      session_.reduce(std::move(gradients), stream_);
    }
    const strata::StepResult result = step.end();
    finish();
    return result.updated ? loss_.item<double>() : std::nan("");
  }

 private:
  struct Layer {
    torch::Tensor weight, bias;
  };

  static torch::Device place_of(strata::Device& device) {
    if (device.host_addressable()) return torch::kCPU;
    return {torch::kCUDA, static_cast<torch::DeviceIndex>(strata::cuda_device_index(device))};
  }

  strata::StreamId own_stream() {
#if defined(EXAMPLE_WITH_CUDA)
    if (on_gpu_) {
      c10::cuda::set_device(where_.index());
      // Not the legacy default stream: its work waits for all others.
      const auto stream = c10::cuda::getStreamFromPool();
      c10::cuda::setCurrentCUDAStream(stream);
      return strata::from_cuda_stream(session_.device(), stream.stream(), "torch");
    }
#endif
    return session_.device().create_stream("torch");
  }

  // Enqueues torch's work behind what the session has enqueued on the stream.
  void run(std::function<void()> work) {
    if (on_gpu_) {
      work();  // enqueues by itself, on torch's current stream
    } else {
      session_.device().launch(stream_, std::move(work));
    }
  }

  void finish() { session_.device().synchronize(session_.device().record(stream_)); }

  template <class View>
  torch::Tensor view_of(const View& view, torch::IntArrayRef shape) const {
    return alias(const_cast<void*>(static_cast<const void*>(view.data)), view.dtype, shape, where_);
  }
  Layer layer_of(const strata::GatherLease& lease) const {
    return {view_of(lease[kWeight], {kWidth, kWidth}), view_of(lease[kBias], {kWidth})};
  }

  static torch::Tensor apply(const torch::Tensor& weight, const torch::Tensor& bias,
                             const torch::Tensor& input) {
    const torch::Tensor typed = input.to(weight.scalar_type());
    return input + torch::tanh(torch::linear(typed, weight, bias)).to(input.scalar_type());
  }

  strata::Session& session_;
  const std::vector<strata::UnitId> layers_;
  const bool on_gpu_;
  const torch::Device where_;
  const strata::StreamId stream_;
  // The network's state between launches; only work in stream order touches it.
  std::vector<torch::Tensor> activations_;
  torch::Tensor target_, d_, loss_;
};

void fill(const strata::TensorSlice& slice, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<double>(slice.offset_elems + i + 1);
    values[i] = slice.tensor == kBias ? 0.0F : 0.1F * static_cast<float>(std::sin(12.9898 * at));
  }
}

void train(const strata::Config& config, int steps) {
  strata::Model model;
  std::vector<strata::UnitId> layers;
  for (int i = 0; i < kLayers; ++i) {
    const auto width = static_cast<std::uint64_t>(kWidth);
    layers.push_back(model.add_unit("layer." + std::to_string(i),
                                    {{"weight", {width, width}}, {"bias", {width}}}));
  }
  auto session = strata::Session::open(model, config, strata::make_communicator(config));
  for (const auto layer : layers) session.initialize(layer, fill);
  Trainer trainer(session, layers);
  double first = 0;
  double last = 0;
  for (int i = 0; i < steps; ++i) {
    last = trainer.step(static_cast<std::uint64_t>(i));
    if (i == 0) first = last;
    if (i % 20 == 0) std::printf("step %3d  loss %.5f\n", i, last);
  }
  std::printf("loss %.5f -> %.5f on %s\n", first, last,
              std::string(session.device().name()).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  strata::Config config;
  config.optimizer.learning_rate = 3e-3;
  config.placement.optimizer = {0, 1, 0};  // masters and moments in host memory
  config.budgets.device = strata::Bytes{std::uint64_t{64} << 20};
  // What torch allocates by itself: the session leaves so much of the budget free on the GPU.
  config.outside.device = strata::Bytes{std::uint64_t{32} << 20};
  if (argc > 1) config = strata::Config::from_file(argv[1]);
  train(config, argc > 2 ? std::atoi(argv[2]) : 200);
} catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch_example: %s\n", error.what());
  return 1;
}
