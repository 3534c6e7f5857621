// Grouped-query causal attention (Ainslie et al., "GQA"), a block of queries of one head at a
// time: a block meets only the keys up to its last query, so that about half of the products that
// causality makes zero are never computed, and the scores in memory are (block, sequence).
//
// Arrays: q, out (batch * sequence, heads * head_dim); k, v (batch * sequence, kv_heads *
// head_dim), with rotary positions applied. All memory is the caller's. Thread: any.
#pragma once

#include <cstdint>

namespace train_gpt {

struct AttentionShape {
  std::uint64_t batch = 0;
  std::uint64_t sequence = 0;
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
};

// Fp32 elements of `scratch`.
std::uint64_t attention_scratch_elems(std::uint64_t sequence);

void attention_forward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                       float* out, float* scratch);

// Replaces q by its gradient; dk and dv are overwritten. `out` is the forward pass's result.
void attention_backward(const AttentionShape& shape, float* q, const float* k, const float* v,
                        const float* out, const float* d_out, float* dk, float* dv, float* scratch);

}  // namespace train_gpt
