// The memory that train_gpt's compute needs besides weights and gradients, laid out once. One
// workspace serves every unit in turn: a block's forward uses a part of what its backward uses,
// and the head reuses the block's arrays. Its size is a pure function of the model and the
// micro-batch, so that a trainer can reserve it to the byte before the first step.
//
// Ownership: pointers into memory of the caller; copying copies pointers.
// Thread: one unit at a time may compute in a workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"
#include "model_config.hpp"
#include "strata/types.hpp"

namespace train_gpt {

// One activation (batch * sequence, hidden) in fp32: what embed and block functions pass on.
strata::Bytes activation_bytes(const GptConfig& config, std::uint64_t batch);

// Activations kept from forward to backward: the input of every block and of the head.
strata::Bytes checkpoint_bytes(const GptConfig& config, std::uint64_t batch);

strata::Bytes workspace_bytes(const GptConfig& config, std::uint64_t batch);

// Per token of the micro-batch, as floats: 4 hidden + 2 kv_width + 3 ffn for a block. Comments
// name what an array holds in a block's backward pass.
struct Workspace {
  // `memory` holds workspace_bytes(config, batch) bytes at a multiple of 64. Fills the rotary
  // table, which stays valid for all units. Null `memory` measures only: all arrays stay null.
  Workspace(const GptConfig& config, std::uint64_t batch, std::byte* memory);

  GptConfig config;
  std::uint64_t batch = 0;
  std::uint64_t tokens = 0;
  std::uint64_t size_bytes = 0;

  float* cosines = nullptr;
  float* sines = nullptr;
  float* slab = nullptr;         // widened rows of a weight, or rows of its gradient
  float* norm_weight = nullptr;  // (hidden)
  float* norm_grad = nullptr;    // (hidden)
  float* scores = nullptr;       // attention_scratch_elems()

  float* normed = nullptr;  // (tokens, hidden)
  float* q = nullptr;       // (tokens, hidden), then its gradient
  float* k = nullptr;       // (tokens, kv_width)
  float* v = nullptr;       // (tokens, kv_width)
  float* attn = nullptr;    // (tokens, hidden)
  float* mid = nullptr;     // (tokens, hidden) residual after attention, then d_attn
  float* gate = nullptr;    // (tokens, ffn), then its gradient, then dk
  float* up = nullptr;      // (tokens, ffn), then its gradient, then dv
  float* act = nullptr;     // (tokens, ffn), then its gradient, then d_normed

  float* head_normed = nullptr;    // (tokens, hidden)
  float* head_d_normed = nullptr;  // (tokens, hidden)
  float* logits = nullptr;         // (tokens, slab of the vocabulary)
  kernels::SoftmaxState softmax;   // (tokens) each

  std::uint64_t* token_order = nullptr;  // (tokens)
};

}  // namespace train_gpt
