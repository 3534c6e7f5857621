#include "model.hpp"

#include <algorithm>

#include "attention.hpp"

namespace train_gpt {
namespace {

using kernels::add_to_gradient;
using kernels::linear_backward_input;
using kernels::linear_backward_weight;
using kernels::linear_forward;
using kernels::NormShape;
using kernels::Write;

NormShape norm_shape(const Workspace& ws) {
  return {.tokens = ws.tokens, .width = ws.config.hidden, .eps = ws.config.norm_eps};
}

kernels::RopeShape rope_shape(const Workspace& ws, std::uint64_t heads) {
  return {.tokens = ws.tokens,
          .sequence = ws.config.sequence,
          .heads = heads,
          .head_dim = ws.config.head_dim()};
}

AttentionShape attention_shape(const Workspace& ws) {
  return {.batch = ws.batch,
          .sequence = ws.config.sequence,
          .heads = ws.config.heads,
          .kv_heads = ws.config.kv_heads,
          .head_dim = ws.config.head_dim()};
}

void norm_forward(const WeightView& weight, const float* x, float* y, const Workspace& ws) {
  const float* w = kernels::widened(weight, 0, weight.rows, ws.norm_weight);
  kernels::rmsnorm_forward(norm_shape(ws), x, w, y);
}

// Adds to `dx`.
void norm_backward(const WeightView& weight, const float* x, const float* dy, float* dx,
                   const GradView& gradient, const Workspace& ws) {
  const float* w = kernels::widened(weight, 0, weight.rows, ws.norm_weight);
  kernels::rmsnorm_backward(norm_shape(ws), x, w, dy, dx, ws.norm_grad);
  add_to_gradient(gradient, 0, ws.norm_grad, weight.rows);
}

// normed, q, k and v with their positions, from the block's input.
void project_attention(const BlockWeights& w, const float* in, const Workspace& ws) {
  const kernels::RopeTable table{ws.cosines, ws.sines};
  norm_forward(w.attn_norm, in, ws.normed, ws);
  linear_forward(ws.normed, ws.tokens, w.wq, ws.q, Write::overwrite, ws.slab);
  linear_forward(ws.normed, ws.tokens, w.wk, ws.k, Write::overwrite, ws.slab);
  linear_forward(ws.normed, ws.tokens, w.wv, ws.v, Write::overwrite, ws.slab);
  kernels::rope_forward(rope_shape(ws, ws.config.heads), table, ws.q);
  kernels::rope_forward(rope_shape(ws, ws.config.kv_heads), table, ws.k);
}

// mid = in + attention(in); fills q, k, v and attn on the way.
void attention_half(const BlockWeights& w, const float* in, float* mid, const Workspace& ws) {
  project_attention(w, in, ws);
  attention_forward(attention_shape(ws), ws.q, ws.k, ws.v, ws.attn, ws.scores);
  std::copy_n(in, ws.tokens * ws.config.hidden, mid);
  linear_forward(ws.attn, ws.tokens, w.wo, mid, Write::add, ws.slab);
}

// normed, gate, up and act = silu(gate) * up, from the residual after attention.
void project_ffn(const BlockWeights& w, const float* mid, float* act, const Workspace& ws) {
  norm_forward(w.ffn_norm, mid, ws.normed, ws);
  linear_forward(ws.normed, ws.tokens, w.w_gate, ws.gate, Write::overwrite, ws.slab);
  linear_forward(ws.normed, ws.tokens, w.w_up, ws.up, Write::overwrite, ws.slab);
  kernels::swiglu_forward(ws.tokens * ws.config.ffn, ws.gate, ws.up, act);
}

// d: gradient of the block's output -> of the residual after attention.
void ffn_backward(const BlockWeights& w, float* d, const BlockGrads& g, const Workspace& ws) {
  linear_backward_weight(d, ws.act, ws.tokens, w.w_down, g.w_down, ws.slab);
  float* d_act = ws.act;
  linear_backward_input(d, ws.tokens, w.w_down, d_act, Write::overwrite, ws.slab);
  kernels::swiglu_backward(ws.tokens * ws.config.ffn, d_act, ws.gate, ws.up);
  linear_backward_weight(ws.gate, ws.normed, ws.tokens, w.w_gate, g.w_gate, ws.slab);
  linear_backward_weight(ws.up, ws.normed, ws.tokens, w.w_up, g.w_up, ws.slab);
  float* d_normed = ws.act;
  linear_backward_input(ws.gate, ws.tokens, w.w_gate, d_normed, Write::overwrite, ws.slab);
  linear_backward_input(ws.up, ws.tokens, w.w_up, d_normed, Write::add, ws.slab);
  norm_backward(w.ffn_norm, ws.mid, d_normed, d, g.ffn_norm, ws);
}

// d: gradient of the residual after attention -> of the block's input.
void attention_half_backward(const BlockWeights& w, const float* in, float* d, const BlockGrads& g,
                             const Workspace& ws) {
  float* d_attn = ws.mid;
  float* dq = ws.q;
  float* dk = ws.gate;
  float* dv = ws.up;
  linear_backward_weight(d, ws.attn, ws.tokens, w.wo, g.wo, ws.slab);
  linear_backward_input(d, ws.tokens, w.wo, d_attn, Write::overwrite, ws.slab);
  attention_backward(attention_shape(ws), ws.q, ws.k, ws.v, ws.attn, d_attn, dk, dv, ws.scores);
  const kernels::RopeTable table{ws.cosines, ws.sines};
  kernels::rope_backward(rope_shape(ws, ws.config.heads), table, dq);
  kernels::rope_backward(rope_shape(ws, ws.config.kv_heads), table, dk);

  norm_forward(w.attn_norm, in, ws.normed, ws);
  linear_backward_weight(dq, ws.normed, ws.tokens, w.wq, g.wq, ws.slab);
  linear_backward_weight(dk, ws.normed, ws.tokens, w.wk, g.wk, ws.slab);
  linear_backward_weight(dv, ws.normed, ws.tokens, w.wv, g.wv, ws.slab);
  float* d_normed = ws.act;
  linear_backward_input(dq, ws.tokens, w.wq, d_normed, Write::overwrite, ws.slab);
  linear_backward_input(dk, ws.tokens, w.wk, d_normed, Write::add, ws.slab);
  linear_backward_input(dv, ws.tokens, w.wv, d_normed, Write::add, ws.slab);
  norm_backward(w.attn_norm, in, d_normed, d, g.attn_norm, ws);
}

// The rows of the output projection that make one slab of logits.
struct OutputSlab {
  WeightView weight;
  std::uint64_t first = 0;
};

template <class Body>
void for_each_output_slab(const WeightView& output, Body&& body) {
  const std::uint64_t step = kernels::slab_rows(output.rows, output.cols);
  for (std::uint64_t first = 0; first < output.rows; first += step) {
    OutputSlab slab{output, first};
    const std::uint64_t offset = first * output.cols * strata::size_of(output.dtype).value;
    slab.weight.data = static_cast<const std::byte*>(output.data) + offset;
    slab.weight.rows = std::min(step, output.rows - first);
    body(slab);
  }
}

kernels::LogitSlab compute_logits(const OutputSlab& slab, const Workspace& ws) {
  linear_forward(ws.head_normed, ws.tokens, slab.weight, ws.logits, Write::overwrite, ws.slab);
  return {.logits = ws.logits, .first = slab.first, .count = slab.weight.rows};
}

GradView rows_from(const GradView& gradient, std::uint64_t offset_elems) {
  if (gradient.data == nullptr) return gradient;
  auto* first = static_cast<std::byte*>(gradient.data);
  return {first + offset_elems * strata::size_of(gradient.dtype).value, gradient.dtype};
}

}  // namespace

void embed_forward(const WeightView& embedding, std::span<const std::uint32_t> tokens, float* out) {
  kernels::embedding_forward(tokens, embedding, out);
}

void embed_backward(std::span<const std::uint32_t> tokens, const float* d_out,
                    const GradView& gradient, const Workspace& ws) {
  kernels::embedding_backward(tokens, ws.config.hidden, d_out, gradient, ws.token_order,
                              ws.norm_grad);
}

void block_forward(const BlockWeights& weights, const float* in, float* out, const Workspace& ws) {
  attention_half(weights, in, out, ws);
  project_ffn(weights, out, ws.act, ws);
  linear_forward(ws.act, ws.tokens, weights.w_down, out, Write::add, ws.slab);
}

void block_backward(const BlockWeights& weights, const float* in, float* d, const BlockGrads& grads,
                    const Workspace& ws) {
  attention_half(weights, in, ws.mid, ws);
  project_ffn(weights, ws.mid, ws.act, ws);
  ffn_backward(weights, d, grads, ws);
  attention_half_backward(weights, in, d, grads, ws);
}

double head_loss(const HeadWeights& weights, const float* in,
                 std::span<const std::uint32_t> targets, const Workspace& ws) {
  norm_forward(weights.final_norm, in, ws.head_normed, ws);
  kernels::cross_entropy_begin(ws.tokens, ws.softmax);
  for_each_output_slab(weights.output, [&](const OutputSlab& slab) {
    kernels::cross_entropy_visit(targets, compute_logits(slab, ws), ws.softmax);
  });
  return kernels::cross_entropy_total(ws.tokens, ws.softmax);
}

double head_backward(const HeadWeights& weights, const float* in,
                     std::span<const std::uint32_t> targets, float scale, float* d_in,
                     const GradView& output_grad, float* d_norm, const Workspace& ws) {
  const double loss = head_loss(weights, in, targets, ws);
  const WeightView& output = weights.output;
  const bool one_slab = kernels::slab_rows(output.rows, output.cols) == output.rows;
  for_each_output_slab(output, [&](const OutputSlab& slab) {
    // The only slab's logits are still there; several slabs share one place.
    const kernels::LogitSlab logits =
        one_slab ? kernels::LogitSlab{ws.logits, 0, output.rows} : compute_logits(slab, ws);
    kernels::cross_entropy_backward(targets, logits, ws.softmax, scale);
    linear_backward_weight(logits.logits, ws.head_normed, ws.tokens, slab.weight,
                           rows_from(output_grad, slab.first * output.cols), ws.slab);
    linear_backward_input(logits.logits, ws.tokens, slab.weight, ws.head_d_normed,
                          slab.first == 0 ? Write::overwrite : Write::add, ws.slab);
  });
  const float* x = in;
  if (d_in == in) {
    // rmsnorm_backward reads x beside the sum it adds to; the normed rows are not needed any more.
    x = ws.head_normed;
    std::copy_n(in, ws.tokens * ws.config.hidden, ws.head_normed);
  }
  std::fill_n(d_in, ws.tokens * ws.config.hidden, 0.0F);
  constexpr GradView kLater;
  norm_backward(weights.final_norm, x, ws.head_d_normed, d_in, kLater, ws);
  std::copy_n(ws.norm_grad, ws.config.hidden, d_norm);
  return loss;
}

void head_norm_gradient(const GradView& final_norm, const float* d_norm, const GptConfig& config) {
  add_to_gradient(final_norm, 0, d_norm, config.hidden);
}

}  // namespace train_gpt
