// Forward and backward of each unit as plain functions over pointers, so that a trainer can
// enqueue them with strata::Device::launch while its gather and gradient leases live. A block
// keeps nothing between its passes but its input: block_backward() recomputes the rest
// (activation checkpointing, Chen et al., "Training Deep Nets with Sublinear Memory Cost").
//
// Activations are fp32 (batch * sequence, hidden). Gradients are added to their buffers, which
// start zeroed; a frozen tensor has a null buffer. All functions block until done, allocate
// nothing and throw nothing. Thread: any; one unit at a time per workspace.
#pragma once

#include <cstdint>
#include <span>

#include "model_config.hpp"
#include "strata/types.hpp"
#include "tensor_view.hpp"
#include "workspace.hpp"

namespace train_gpt {

// The tensors of a block, in the order of units(); View is WeightView or GradView.
template <class View>
struct BlockTensors {
  View attn_norm, wq, wk, wv, wo, ffn_norm, w_gate, w_up, w_down;
};

using BlockWeights = BlockTensors<WeightView>;
using BlockGrads = BlockTensors<GradView>;

// `output` is the embedding when it is tied, otherwise lm_head; (vocab, hidden) as the embedding.
struct HeadWeights {
  WeightView final_norm, output;
};

// Views of a block's tensors. `tensors` is a strata::GatherLease or strata::GradientLease, or
// anything else that gives {data, dtype} for a strata::TensorId.
template <class Tensors>
BlockWeights block_weights(const GptConfig& config, const Tensors& tensors);
template <class Tensors>
BlockGrads block_grads(Tensors& tensors);

void embed_forward(const WeightView& embedding, std::span<const std::uint32_t> tokens, float* out);

void embed_backward(std::span<const std::uint32_t> tokens, const float* d_out,
                    const GradView& gradient, const Workspace& workspace);

// `out` must not be `in`.
void block_forward(const BlockWeights& weights, const float* in, float* out,
                   const Workspace& workspace);

// `in` is what block_forward() was given. `d` holds the gradient of the block's output and is
// replaced by that of its input.
void block_backward(const BlockWeights& weights, const float* in, float* d, const BlockGrads& grads,
                    const Workspace& workspace);

// The sum (not the mean) of the tokens' cross-entropy losses, in fp64 in a fixed order.
double head_loss(const HeadWeights& weights, const float* in,
                 std::span<const std::uint32_t> targets, const Workspace& workspace);

// Returns the same loss, writes to `d_in` the gradient of (loss * scale) and adds that of the
// output projection. `d_in` may be `in`. The final norm's gradient (hidden) goes to `d_norm`, which
// head_norm_gradient() adds: with tied embeddings the two belong to different units, and a session
// lends one gradient buffer at a time.
double head_backward(const HeadWeights& weights, const float* in,
                     std::span<const std::uint32_t> targets, float scale, float* d_in,
                     const GradView& output, float* d_norm, const Workspace& workspace);

void head_norm_gradient(const GradView& final_norm, const float* d_norm, const GptConfig& config);

// Implementation of the templates above.

template <class Tensors>
BlockWeights block_weights(const GptConfig& c, const Tensors& tensors) {
  std::uint32_t next = 0;
  const auto view = [&](std::uint64_t rows, std::uint64_t cols) {
    const auto tensor = tensors[strata::TensorId{next++}];
    return WeightView{tensor.data, tensor.dtype, rows, cols};
  };
  const std::uint64_t hidden = c.hidden;
  const std::uint64_t kv = c.kv_width();
  const std::uint64_t ffn = c.ffn;
  // A braced list is evaluated from left to right.
  return BlockWeights{view(hidden, 1),   view(hidden, hidden), view(kv, hidden),
                      view(kv, hidden),  view(hidden, hidden), view(hidden, 1),
                      view(ffn, hidden), view(ffn, hidden),    view(hidden, ffn)};
}

template <class Tensors>
BlockGrads block_grads(Tensors& tensors) {
  std::uint32_t next = 0;
  const auto view = [&] {
    const auto tensor = tensors[strata::TensorId{next++}];
    return GradView{tensor.data, tensor.dtype};
  };
  return BlockGrads{view(), view(), view(), view(), view(), view(), view(), view(), view()};
}

}  // namespace train_gpt
