#include "support/local_gpt.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "strata/element_ops.hpp"

namespace strata::testing {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kGuardBytes = 4096;
constexpr std::byte kGuard{0xA5};

std::uint64_t align_offset(const std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return round_up(address, kAlign) - address;
}

}  // namespace

// What block_weights() and block_grads() index, as they do a session's leases.
struct LocalGpt::UnitView {
  LocalGpt& model;
  const std::vector<std::string>& names;
  bool gradients;

  train_gpt::GradView operator[](TensorId id) const {
    Tensor& tensor = model.tensors_.at(names.at(id.value));
    if (!gradients) return {tensor.weight.data(), model.dtypes_.weights};
    return {tensor.frozen ? nullptr : tensor.gradient.data(), model.dtypes_.gradients};
  }
};

LocalGpt::LocalGpt(const train_gpt::GptConfig& config, std::uint64_t batch, Dtypes dtypes,
                   const Fill& fill)
    : config_(config),
      dtypes_(dtypes),
      memory_(train_gpt::workspace_bytes(config, batch).value + kAlign + kGuardBytes, kGuard),
      workspace_at_(align_offset(memory_)),
      workspace_(config, batch, memory_.data() + workspace_at_) {
  train_gpt::kernels::set_blas_threads(1);
  for (const UnitSpec& unit : train_gpt::units(config)) {
    for (const TensorSpec& spec : unit.tensors) {
      const std::string name = unit.name + "/" + spec.name;
      unit_tensors_[unit.name].push_back(name);
      Tensor& tensor = tensors_[name];
      tensor.count = 1;
      for (const std::uint64_t extent : spec.shape) tensor.count *= extent;
      tensor.decays = spec.shape.size() > 1;
      std::vector<float> values(tensor.count);
      fill(unit.name, spec.name, values);
      tensor.weight.resize((size_of(dtypes.weights) * tensor.count).value);
      convert(tensor.weight.data(), dtypes.weights, values.data(), DType::fp32, tensor.count);
      tensor.gradient.resize((size_of(dtypes.gradients) * tensor.count).value);
      tensor.moment1.resize(tensor.count);
      tensor.moment2.resize(tensor.count);
    }
  }
  const std::uint64_t elems = train_gpt::activation_bytes(config, batch).value / sizeof(float);
  checkpoints_.assign(config.layers + 1, std::vector<float>(elems));
}

std::string LocalGpt::block_name(std::uint32_t layer) const {
  return "block." + std::to_string(layer);
}

train_gpt::HeadWeights LocalGpt::head() const {
  const auto& output = config_.tied_embeddings ? "embed/embedding" : "head/lm_head";
  const DType dtype = dtypes_.weights;
  return {{tensors_.at("head/final_norm").weight.data(), dtype, config_.hidden, 1},
          {tensors_.at(output).weight.data(), dtype, config_.vocab, config_.hidden}};
}

train_gpt::GradView LocalGpt::gradient_view(const std::string& name) {
  Tensor& tensor = tensors_.at(name);
  return {tensor.frozen ? nullptr : tensor.gradient.data(), dtypes_.gradients};
}

void LocalGpt::forward(std::span<const std::uint32_t> inputs) {
  const train_gpt::WeightView embedding{tensors_.at("embed/embedding").weight.data(),
                                        dtypes_.weights, config_.vocab, config_.hidden};
  train_gpt::embed_forward(embedding, inputs, checkpoints_[0].data());
  for (std::uint32_t layer = 0; layer < config_.layers; ++layer) {
    const UnitView unit{*this, unit_tensors_.at(block_name(layer)), false};
    train_gpt::block_forward(train_gpt::block_weights(config_, unit), checkpoints_[layer].data(),
                             checkpoints_[layer + 1].data(), workspace_);
  }
}

double LocalGpt::loss(std::span<const std::uint32_t> inputs,
                      std::span<const std::uint32_t> targets) {
  forward(inputs);
  return train_gpt::head_loss(head(), checkpoints_.back().data(), targets, workspace_);
}

double LocalGpt::accumulate(std::span<const std::uint32_t> inputs,
                            std::span<const std::uint32_t> targets, float scale) {
  forward(inputs);
  float* d = checkpoints_.back().data();
  const char* output = config_.tied_embeddings ? "embed/embedding" : "head/lm_head";
  std::vector<float> norm_grad(config_.hidden);
  const double loss = train_gpt::head_backward(head(), d, targets, scale, d, gradient_view(output),
                                               norm_grad.data(), workspace_);
  train_gpt::head_norm_gradient(gradient_view("head/final_norm"), norm_grad.data(),
                                workspace_.config);
  for (std::uint32_t layer = config_.layers; layer-- > 0;) {
    const auto& names = unit_tensors_.at(block_name(layer));
    const UnitView weights{*this, names, false};
    const UnitView gradients{*this, names, true};
    train_gpt::block_backward(train_gpt::block_weights(config_, weights),
                              checkpoints_[layer].data(), d, train_gpt::block_grads(gradients),
                              workspace_);
  }
  train_gpt::embed_backward(inputs, d, gradient_view("embed/embedding"), workspace_);
  return loss;
}

void LocalGpt::apply(float gradient_factor, double learning_rate, double weight_decay) {
  ++steps_;
  const auto t = static_cast<double>(steps_);
  for (auto& [name, tensor] : tensors_) {
    UpdateCoefficients c;
    constexpr double kBeta1 = 0.9;
    constexpr double kBeta2 = 0.999;
    c.factor = gradient_factor;
    c.decay = static_cast<float>(learning_rate * (tensor.decays ? weight_decay : 0));
    c.step = static_cast<float>(learning_rate / (1 - std::pow(kBeta1, t)));
    c.second_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, t)));
    UpdateOp op;
    op.gradient = tensor.gradient.data();
    op.gradient_dtype = dtypes_.gradients;
    op.weights = tensor.weight.data();
    op.moments = {tensor.moment1.data(), tensor.moment2.data()};
    op.count_elems = tensor.count;
    op.runs.push_back({0, tensor.count, c});
    run_on_host(op);
  }
  zero_gradients();
}

void LocalGpt::zero_gradients() {
  for (auto& [name, tensor] : tensors_) {
    std::fill(tensor.gradient.begin(), tensor.gradient.end(), std::byte{0});
  }
}

std::vector<float> LocalGpt::gradient(const std::string& name) const {
  const Tensor& tensor = tensors_.at(name);
  std::vector<float> values(tensor.count);
  convert(values.data(), DType::fp32, tensor.gradient.data(), dtypes_.gradients, tensor.count);
  return values;
}

std::span<const std::byte> LocalGpt::gradient_bytes(const std::string& name) const {
  return tensors_.at(name).gradient;
}

std::vector<std::string> LocalGpt::names() const {
  std::vector<std::string> all;
  for (const auto& [name, tensor] : tensors_) all.push_back(name);
  return all;
}

std::span<std::byte> LocalGpt::workspace_memory() {
  auto* begin = reinterpret_cast<std::byte*>(workspace_.slab);
  return {begin, memory_.data() + workspace_at_ + workspace_.size_bytes};
}

bool LocalGpt::guard_is_intact() const {
  const auto end = memory_.begin() + static_cast<std::ptrdiff_t>(workspace_at_) +
                   static_cast<std::ptrdiff_t>(workspace_.size_bytes);
  return std::all_of(end, memory_.end(), [](std::byte b) { return b == kGuard; });
}

}  // namespace strata::testing
