// One rank's training of the decoder on a session: which unit is gathered, computed and reduced
// when. Micro-batches run one after the other, each forward over the units and backward in reverse,
// or (vertical) all of them pass a unit before the next unit is gathered. The blocks' inputs are
// stashed with the session, on a GPU kept on the host, and the rest is recomputed. The math runs on
// one stream of the session's device, and every launch declares the bytes that it reads and writes.
// It is the CPU's math: for a GPU, weights are copied to the host and gradients back
// (host_copies.hpp).
//
// Ownership: borrows the session and the data; all memory is scratch of the session, of the sizes
// that session_options() declares. Destroy the trainer before the session closes.
// Thread: the session's caller. Methods block as the session's calls that they make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data.hpp"
#include "host_copies.hpp"
#include "model.hpp"
#include "strata/session.hpp"

namespace train_gpt {

struct TrainerOptions {
  GptConfig model;
  std::uint32_t batch = 1;         // sequences of one micro-batch of one rank
  std::uint32_t accumulation = 1;  // micro-batches of a step
  // All micro-batches pass a unit before the next: each weight moves once per pass and step, and
  // gradients are reduced once. Rounds otherwise than one after the other.
  bool vertical = false;
  std::uint32_t eval_batches = 1;  // micro-batches of one rank in an evaluation
  std::uint64_t seed = 0;
  // The session's device is a GPU (Session::runs_on_gpu), and activations stay on the host.
  bool copies_to_host = false;

  std::uint64_t tokens_of_micro_batch() const { return std::uint64_t{batch} * model.sequence; }
  // Micro-batches whose activations are kept at once, and stashes of one step.
  std::uint32_t kept_micro_batches() const { return vertical ? accumulation : 1; }
  std::uint32_t kept_inputs() const { return model.layers * kept_micro_batches(); }
};

strata::Model make_model(const GptConfig& config);

class Trainer {
 public:
  // The scratch that a trainer asks for, for Session::open() to prove.
  static strata::SessionOptions session_options(const TrainerOptions& options);

  Trainer(strata::Session& session, Dataset& data, const TrainerOptions& options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void initialize_weights();

  struct StepReport {
    double loss_sum = 0;         // over this rank's tokens
    double compute_seconds = 0;  // for which the compute stream was busy
    strata::StepResult result;
  };
  // `index` names the batches; `groups` are the rates by kDecayGroup and kNormGroup.
  StepReport step(std::uint64_t index, std::vector<strata::GroupRates> groups);

  // The sum of the losses of this rank's evaluation tokens, the same ones at every call.
  double evaluate();

 private:
  // Token ids on the host until their copy has run: inputs, then targets.
  struct HostBatch {
    std::span<std::uint32_t> tokens;
    strata::Event copied;
  };

  void lay_out_math(std::span<std::byte> memory);
  void lay_out_host(std::span<std::byte> memory);
  HostCopies lay_out_copies();

  // Micro-batches that are computed side by side: places of tokens, activations and losses.
  struct Batches {
    std::uint32_t count = 1;
    std::uint32_t first_loss = 0;
  };

  // The input of a block, while it is used.
  struct Input {
    strata::ActivationLease lease;  // empty on a GPU, whose activations stay on the host
    float* data = nullptr;
  };
  Input new_input(std::uint32_t layer, std::uint32_t batch);
  Input stored_input(std::uint32_t layer, std::uint32_t batch);

  void upload_batch(Split split, const BatchId& id, std::uint32_t place);
  // `keeps`: the blocks' inputs, for a backward pass.
  void forward(const Batches& batches, bool keeps);
  void embed_forward(const Batches& batches, std::vector<Input>& outputs);
  void block_forward(std::uint32_t layer, const Batches& batches, bool keeps,
                     std::vector<Input>& inputs);
  void head_loss(std::uint32_t slot);
  void head_backward(const Batches& batches);
  void backward(const Batches& batches);
  void block_backward(std::uint32_t layer, const Batches& batches);
  void embed_backward(const Batches& batches);
  strata::Event download_losses(std::uint32_t count);
  double sum_losses(std::uint32_t count, strata::Event ready) const;

  // What the math reads and adds to, instead of what the session lends.
  BlockWeights copied(const BlockWeights& weights);
  BlockGrads copied(const BlockGrads& grads, const BlockWeights& shapes);
  HeadWeights copied(const HeadWeights& weights);
  GradView copied(const GradView& gradient, const WeightView& shape);
  // Hands over the gradients that the math has added to.
  void reduce(strata::GradientLease lease);

  // Between token and loss buffers of the host and those of the math.
  void move(void* to, const void* from, strata::Bytes size, strata::CopyKind kind);

  // Enqueues on the compute stream; `accesses_` is used up.
  template <class Function>
  void launch(Function&& function);
  void reads(const void* data, strata::Bytes size);
  void writes(void* data, strata::Bytes size);
  void updates(void* data, strata::Bytes size);
  void uses_workspace();
  void reads_weights(const WeightView& view);
  void updates_gradient(const GradView& view, const WeightView& shape);

  strata::UnitId block(std::uint32_t layer) const { return strata::UnitId{1 + layer}; }
  strata::UnitId output_unit() const { return options_.model.tied_embeddings ? embed_ : head_; }
  WeightView embedding_view(const strata::GatherLease& embed) const;
  HeadWeights head_views(const strata::GatherLease& head, const strata::GatherLease& embed) const;
  GradView output_gradient(strata::GradientLease& lease) const;

  strata::Session& session_;
  Dataset& data_;
  const TrainerOptions options_;
  strata::Device& device_;
  const strata::StreamId stream_;
  const strata::UnitId embed_{0};
  const strata::UnitId head_;

  strata::ScratchLease math_scratch_;  // on the device, or on the host with copies_to_host
  strata::ScratchLease host_scratch_;
  strata::ScratchLease copies_scratch_;
  HostCopies copies_;
  std::vector<float*> inputs_of_blocks_;  // on a GPU: by block, for each micro-batch
  std::vector<float*> outputs_;           // of the last block, then their gradients; by batch
  std::vector<float*> norm_grads_;        // of the head's norm, by batch
  std::span<std::byte> workspace_memory_;
  std::optional<Workspace> workspace_;
  struct Tokens {
    std::span<std::uint32_t> inputs;
    std::span<std::uint32_t> targets;  // right behind them
  };
  std::vector<Tokens> tokens_;  // by batch
  std::span<double> losses_;    // the sum of each micro-batch
  std::span<double> host_losses_;
  HostBatch host_batches_[2];
  std::uint32_t next_host_batch_ = 0;
  float loss_factor_ = 1;  // of the step: what gradients are computed of, times the sum of losses
  std::vector<strata::Access> accesses_;
};

}  // namespace train_gpt
