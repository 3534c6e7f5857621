// An independent answer to "what should training give": the decoder of train_gpt with AdamW and
// gradient clipping, in one process, in double precision, with loops as plain as the formulas. It
// shares no arithmetic with the library or the example, only the description of the model; whole
// training runs are compared with it within rounding. Slow; for models of about a million
// parameters. Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "strata/types.hpp"
#include "train_gpt/model_config.hpp"

namespace strata::testing {

struct ReferenceOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;          // of matrices; norms do not decay
  double clip_norm = 0;             // 0: do not clip
  DType param_dtype = DType::fp32;  // the passes see weights rounded to it; masters stay exact
};

class ReferenceTrainer {
 public:
  // Writes the initial values of a whole tensor.
  using Fill =
      std::function<void(const std::string& unit, const std::string& tensor, std::span<float>)>;

  ReferenceTrainer(const train_gpt::GptConfig& config, const ReferenceOptions& options,
                   const Fill& fill);

  // Sum of the losses of all tokens; both spans hold rows of config.sequence tokens.
  double loss(std::span<const std::uint32_t> inputs, std::span<const std::uint32_t> targets);

  // The same, and adds the gradient of that sum. Call it for every micro-batch of every rank.
  double accumulate(std::span<const std::uint32_t> inputs, std::span<const std::uint32_t> targets);

  // One optimizer step with gradients * gradient_scale, which are then zeroed. Returns the
  // gradient norm before clipping.
  double apply(double gradient_scale, double learning_rate);

  // Named "unit/tensor". A tied model has no "head/lm_head".
  const std::vector<double>& weight(const std::string& name) const { return at(name).master; }
  const std::vector<double>& gradient(const std::string& name) const { return at(name).gradient; }
  void set_weight(const std::string& name, std::uint64_t index, double value);

 private:
  struct Tensor {
    std::vector<double> master, param, gradient, moment1, moment2;
    bool decays = false;
  };
  struct Block;  // activations of one sequence in one block
  using Row = std::vector<double>;
  using Matrix = std::vector<Row>;

  const Tensor& at(const std::string& name) const { return tensors_.at(name); }
  Tensor& output_projection();
  void publish(Tensor& tensor) const;

  Matrix linear(const Matrix& x, const Tensor& w) const;
  void linear_backward(const Matrix& x, Tensor& w, const Matrix& dy, Matrix& dx) const;
  Matrix norm(const Matrix& x, const Tensor& w) const;
  void norm_backward(const Matrix& x, Tensor& w, const Matrix& dy, Matrix& dx) const;
  void rotate(Matrix& x, double direction) const;
  std::vector<double> probabilities(const Block& block, std::uint64_t head,
                                    std::uint64_t query) const;
  Matrix attend(const Block& block) const;
  void attend_backward(const Block& block, const Matrix& d_out, Matrix& dq, Matrix& dk,
                       Matrix& dv) const;
  Matrix block_forward(std::uint32_t layer, Block& block);
  void block_backward(std::uint32_t layer, const Block& block, Matrix& d);
  double run_sequence(std::span<const std::uint32_t> inputs, std::span<const std::uint32_t> targets,
                      bool backward);

  train_gpt::GptConfig config_;
  ReferenceOptions options_;
  std::map<std::string, Tensor> tensors_;
  std::uint64_t steps_ = 0;
};

}  // namespace strata::testing
