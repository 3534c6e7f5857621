#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include "fast_math.hpp"
#include "kernels.hpp"

namespace train_gpt {
namespace {

using kernels::multiply;
using kernels::Transpose;

constexpr std::uint64_t kQueryBlock = 64;

// Where one block of queries of one head stands in the arrays.
struct QueryBlock {
  std::uint64_t first = 0;     // position of its first query in the sequence
  std::uint64_t rows = 0;      // queries
  std::uint64_t keys = 0;      // keys that any of them may see
  std::uint64_t query_at = 0;  // element offset of the block in q and out
  std::uint64_t key_at = 0;    // element offset of key 0 in k and v
  std::uint64_t q_stride = 0;
  std::uint64_t kv_stride = 0;
};

// Calls `body(block)` for every block, in a fixed order.
template <class Body>
void for_each_block(const AttentionShape& s, Body&& body) {
  const std::uint64_t heads_per_kv = s.heads / s.kv_heads;
  QueryBlock block{.q_stride = s.heads * s.head_dim, .kv_stride = s.kv_heads * s.head_dim};
  for (std::uint64_t row = 0; row < s.batch; ++row) {
    for (std::uint64_t head = 0; head < s.heads; ++head) {
      const std::uint64_t token = row * s.sequence;
      block.key_at = token * block.kv_stride + head / heads_per_kv * s.head_dim;
      for (std::uint64_t first = 0; first < s.sequence; first += kQueryBlock) {
        block.first = first;
        block.rows = std::min(kQueryBlock, s.sequence - first);
        block.keys = first + block.rows;
        block.query_at = (token + first) * block.q_stride + head * s.head_dim;
        body(block);
      }
    }
  }
}

// Softmax over the keys at or before the query at `position`; later keys get probability 0.
void causal_softmax_row(float* row, std::uint64_t position, std::uint64_t keys) {
  const std::uint64_t seen = position + 1;
  const float maximum = row_maximum(row, seen);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::uint64_t i = 0; i < seen; ++i) {
    row[i] = fast_exp(row[i] - maximum);
    sum += row[i];
  }
  const float scale = 1.0F / sum;
  for (std::uint64_t i = 0; i < seen; ++i) row[i] *= scale;
  std::fill(row + seen, row + keys, 0.0F);
}

// Softmax probabilities of a block, (rows, keys), into `scores`.
void probabilities(const AttentionShape& s, const QueryBlock& b, const float* q, const float* k,
                   float* scores) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
  multiply({.rows = b.rows, .cols = b.keys, .inner = s.head_dim}, scale,
           {q + b.query_at, b.q_stride}, {k + b.key_at, b.kv_stride, Transpose::yes}, 0,
           {scores, b.keys});
  for (std::uint64_t row = 0; row < b.rows; ++row) {
    causal_softmax_row(scores + row * b.keys, b.first + row, b.keys);
  }
}

float dot(const float* a, const float* b, std::uint64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::uint64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Turns d_probability into d_score in place: ds = p * (dp - sum(p * dp)) * scale, where the sum is
// dot(out, d_out) (Dao et al., "FlashAttention", appendix B.4).
void softmax_backward(const AttentionShape& s, const QueryBlock& b, const float* probability,
                      const float* out, const float* d_out, float* d_score) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
  for (std::uint64_t row = 0; row < b.rows; ++row) {
    const std::uint64_t at = b.query_at + row * b.q_stride;
    const float mean = dot(out + at, d_out + at, s.head_dim);
    const float* p = probability + row * b.keys;
    float* ds = d_score + row * b.keys;
    for (std::uint64_t i = 0; i < b.keys; ++i) ds[i] = p[i] * (ds[i] - mean) * scale;
  }
}

}  // namespace

std::uint64_t attention_scratch_elems(std::uint64_t sequence) {
  return 2 * std::min(kQueryBlock, sequence) * sequence;
}

void attention_forward(const AttentionShape& s, const float* q, const float* k, const float* v,
                       float* out, float* scratch) {
  for_each_block(s, [&](const QueryBlock& b) {
    probabilities(s, b, q, k, scratch);
    multiply({.rows = b.rows, .cols = s.head_dim, .inner = b.keys}, 1, {scratch, b.keys},
             {v + b.key_at, b.kv_stride}, 0, {out + b.query_at, b.q_stride});
  });
}

void attention_backward(const AttentionShape& s, float* q, const float* k, const float* v,
                        const float* out, const float* d_out, float* dk, float* dv,
                        float* scratch) {
  const std::uint64_t kv_elems = s.batch * s.sequence * s.kv_heads * s.head_dim;
  std::fill_n(dk, kv_elems, 0.0F);
  std::fill_n(dv, kv_elems, 0.0F);
  float* probability = scratch;
  float* d_score = scratch + attention_scratch_elems(s.sequence) / 2;
  for_each_block(s, [&](const QueryBlock& b) {
    probabilities(s, b, q, k, probability);
    multiply({.rows = b.rows, .cols = b.keys, .inner = s.head_dim}, 1,
             {d_out + b.query_at, b.q_stride}, {v + b.key_at, b.kv_stride, Transpose::yes}, 0,
             {d_score, b.keys});
    softmax_backward(s, b, probability, out, d_out, d_score);
    multiply({.rows = b.keys, .cols = s.head_dim, .inner = b.rows}, 1,
             {probability, b.keys, Transpose::yes}, {d_out + b.query_at, b.q_stride}, 1,
             {dv + b.key_at, b.kv_stride});
    multiply({.rows = b.keys, .cols = s.head_dim, .inner = b.rows}, 1,
             {d_score, b.keys, Transpose::yes}, {q + b.query_at, b.q_stride}, 1,
             {dk + b.key_at, b.kv_stride});
    // The block's queries were read for the last time, so their gradient may take their place.
    multiply({.rows = b.rows, .cols = s.head_dim, .inner = b.keys}, 1, {d_score, b.keys},
             {k + b.key_at, b.kv_stride}, 0, {q + b.query_at, b.q_stride});
  });
}

}  // namespace train_gpt
