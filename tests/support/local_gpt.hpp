// The decoder of train_gpt in one process without a session: weights, gradients, checkpoints and
// workspace in plain vectors, driven unit by unit as a trainer does. Tests of the example's math
// use it, and it is the simplest example of how the unit functions fit together.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "strata/types.hpp"
#include "train_gpt/model.hpp"

namespace strata::testing {

class LocalGpt {
 public:
  using Fill =
      std::function<void(const std::string& unit, const std::string& tensor, std::span<float>)>;

  struct Dtypes {
    DType weights = DType::fp32;
    DType gradients = DType::fp32;
  };

  LocalGpt(const train_gpt::GptConfig& config, std::uint64_t batch, Dtypes dtypes,
           const Fill& fill);

  double loss(std::span<const std::uint32_t> inputs, std::span<const std::uint32_t> targets);

  // Adds the gradient of (sum of losses * scale) and returns the sum of losses.
  double accumulate(std::span<const std::uint32_t> inputs, std::span<const std::uint32_t> targets,
                    float scale = 1);

  // One AdamW step by the library's element op, fp32 weights and gradients only.
  void apply(float gradient_factor, double learning_rate, double weight_decay);

  void zero_gradients();
  void freeze(const std::string& name) { tensors_.at(name).frozen = true; }
  std::vector<float> gradient(const std::string& name) const;  // widened; "unit/tensor"
  std::span<const std::byte> gradient_bytes(const std::string& name) const;
  std::vector<std::string> names() const;

  // Every byte of the workspace but the rotary table, and the guard behind it.
  std::span<std::byte> workspace_memory();
  bool guard_is_intact() const;

 private:
  struct Tensor {
    std::vector<std::byte> weight, gradient;
    std::vector<float> moment1, moment2;
    std::uint64_t count = 0;
    bool frozen = false;
    bool decays = false;
  };
  struct UnitView;

  std::string block_name(std::uint32_t layer) const;
  train_gpt::HeadWeights head() const;
  train_gpt::GradView gradient_view(const std::string& name);
  void forward(std::span<const std::uint32_t> inputs);

  train_gpt::GptConfig config_;
  Dtypes dtypes_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::vector<std::string>> unit_tensors_;  // names in the order of units()
  std::vector<std::byte> memory_;
  std::uint64_t workspace_at_ = 0;  // offset of the aligned workspace in memory_
  train_gpt::Workspace workspace_;
  std::vector<std::vector<float>> checkpoints_;
  std::uint64_t steps_ = 0;
};

}  // namespace strata::testing
