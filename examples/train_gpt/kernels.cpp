#include "kernels.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fast_math.hpp"
#include "strata/element_ops.hpp"

namespace train_gpt::kernels {
namespace {

using strata::DType;
using strata::size_of;

// 4 MiB of fp32: large enough for an efficient product, small enough to stay in a shared cache.
constexpr std::uint64_t kSlabElems = std::uint64_t{1} << 20;

CBLAS_TRANSPOSE flag(Transpose transpose) {
  return transpose == Transpose::yes ? CblasTrans : CblasNoTrans;
}

blasint size(std::uint64_t value) { return static_cast<blasint>(value); }

// Calls `body(first_row, count_rows)` for each slab of the tensor, in order.
template <class Body>
void for_each_slab(const WeightView& w, Body&& body) {
  const std::uint64_t step = slab_rows(w.rows, w.cols);
  for (std::uint64_t first = 0; first < w.rows; first += step) {
    body(first, std::min(step, w.rows - first));
  }
}

float inverse_rms(const float* x, std::uint64_t width, float eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::uint64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  return 1.0F / std::sqrt(squares / static_cast<float>(width) + eps);
}

void add_row(float* sum, const float* row, std::uint64_t width) {
  for (std::uint64_t i = 0; i < width; ++i) sum[i] += row[i];
}

// `direction` is 1 for the forward turn and -1 for the way back.
void rotate(const RopeShape& shape, const RopeTable& table, float direction, float* x) {
  const std::uint64_t half = shape.head_dim / 2;
  for (std::uint64_t token = 0; token < shape.tokens; ++token) {
    const std::uint64_t position = token % shape.sequence;
    const float* cosine = table.cosines + position * half;
    const float* sine = table.sines + position * half;
    for (std::uint64_t head = 0; head < shape.heads; ++head) {
      float* low = x + (token * shape.heads + head) * shape.head_dim;
      float* high = low + half;
#pragma omp simd
      for (std::uint64_t i = 0; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        const float s = direction * sine[i];
        low[i] = a * cosine[i] - b * s;
        high[i] = b * cosine[i] + a * s;
      }
    }
  }
}

}  // namespace

void set_blas_threads(int count) { openblas_set_num_threads(count); }

void multiply(const ProductShape& shape, float alpha, MatrixIn a, MatrixIn b, float beta,
              MatrixOut c) {
  cblas_sgemm(CblasRowMajor, flag(a.transpose), flag(b.transpose), size(shape.rows),
              size(shape.cols), size(shape.inner), alpha, a.data, size(a.stride), b.data,
              size(b.stride), beta, c.data, size(c.stride));
}

std::uint64_t slab_rows(std::uint64_t rows, std::uint64_t cols) {
  constexpr std::uint64_t kRowTile = 16;  // of the matrix product's inner kernel
  const std::uint64_t most = std::max(kRowTile, kSlabElems / cols);
  const std::uint64_t slabs = (rows + most - 1) / most;
  const std::uint64_t even = (rows + slabs - 1) / slabs;
  return std::min(rows, std::min(most, strata::round_up(even, kRowTile)));
}

const float* widened(const WeightView& weight, std::uint64_t offset_elems, std::uint64_t count,
                     float* scratch) {
  const auto* first =
      static_cast<const std::byte*>(weight.data) + (size_of(weight.dtype) * offset_elems).value;
  if (weight.dtype == DType::fp32) return reinterpret_cast<const float*>(first);
  strata::convert(scratch, DType::fp32, first, weight.dtype, count);
  return scratch;
}

void add_to_gradient(const GradView& gradient, std::uint64_t offset_elems, const float* values,
                     std::uint64_t count) {
  if (gradient.data == nullptr) return;
  auto* first =
      static_cast<std::byte*>(gradient.data) + (size_of(gradient.dtype) * offset_elems).value;
  if (gradient.dtype == DType::fp32) return add_row(reinterpret_cast<float*>(first), values, count);
  constexpr std::uint64_t kPiece = 1024;
  float sum[kPiece];
  for (std::uint64_t begin = 0; begin < count; begin += kPiece) {
    const std::uint64_t piece = std::min(kPiece, count - begin);
    std::byte* stored = first + (size_of(gradient.dtype) * begin).value;
    strata::convert(sum, DType::fp32, stored, gradient.dtype, piece);
    add_row(sum, values + begin, piece);
    strata::convert(stored, gradient.dtype, sum, DType::fp32, piece);
  }
}

void linear_forward(const float* x, std::uint64_t tokens, const WeightView& w, float* y,
                    Write write, float* scratch) {
  const float beta = write == Write::add ? 1.0F : 0.0F;
  for_each_slab(w, [&](std::uint64_t first, std::uint64_t rows) {
    const float* slab = widened(w, first * w.cols, rows * w.cols, scratch);
    multiply({.rows = tokens, .cols = rows, .inner = w.cols}, 1, {x, w.cols},
             {slab, w.cols, Transpose::yes}, beta, {y + first, w.rows});
  });
}

void linear_backward_input(const float* dy, std::uint64_t tokens, const WeightView& w, float* dx,
                           Write write, float* scratch) {
  for_each_slab(w, [&](std::uint64_t first, std::uint64_t rows) {
    const float* slab = widened(w, first * w.cols, rows * w.cols, scratch);
    const float beta = write == Write::add || first > 0 ? 1.0F : 0.0F;
    multiply({.rows = tokens, .cols = w.cols, .inner = rows}, 1, {dy + first, w.rows},
             {slab, w.cols}, beta, {dx, w.cols});
  });
}

void linear_backward_weight(const float* dy, const float* x, std::uint64_t tokens,
                            const WeightView& w, const GradView& gradient, float* scratch) {
  if (gradient.data == nullptr) return;
  for_each_slab(w, [&](std::uint64_t first, std::uint64_t rows) {
    multiply({.rows = rows, .cols = w.cols, .inner = tokens}, 1,
             {dy + first, w.rows, Transpose::yes}, {x, w.cols}, 0, {scratch, w.cols});
    add_to_gradient(gradient, first * w.cols, scratch, rows * w.cols);
  });
}

void rmsnorm_forward(const NormShape& shape, const float* x, const float* weight, float* y) {
  for (std::uint64_t token = 0; token < shape.tokens; ++token) {
    const float* in = x + token * shape.width;
    float* out = y + token * shape.width;
    const float scale = inverse_rms(in, shape.width, shape.eps);
    for (std::uint64_t i = 0; i < shape.width; ++i) out[i] = in[i] * scale * weight[i];
  }
}

// With u = x * scale and t = dy * weight: dx = scale * (t - u * mean(t * u)).
void rmsnorm_backward(const NormShape& shape, const float* x, const float* weight, const float* dy,
                      float* dx, float* dweight) {
  std::fill_n(dweight, shape.width, 0.0F);
  for (std::uint64_t token = 0; token < shape.tokens; ++token) {
    const float* in = x + token * shape.width;
    const float* up = dy + token * shape.width;
    float* out = dx + token * shape.width;
    const float scale = inverse_rms(in, shape.width, shape.eps);
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::uint64_t i = 0; i < shape.width; ++i) dot += up[i] * weight[i] * in[i];
    const float mean = dot * scale / static_cast<float>(shape.width);
#pragma omp simd
    for (std::uint64_t i = 0; i < shape.width; ++i) {
      const float u = in[i] * scale;
      out[i] += scale * (up[i] * weight[i] - u * mean);
      dweight[i] += up[i] * u;
    }
  }
}

void fill_rope_table(std::uint64_t sequence, std::uint64_t head_dim, double theta, float* cosines,
                     float* sines) {
  const std::uint64_t half = head_dim / 2;
  for (std::uint64_t position = 0; position < sequence; ++position) {
    for (std::uint64_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
      const double angle = static_cast<double>(position) * std::pow(theta, exponent);
      cosines[position * half + i] = static_cast<float>(std::cos(angle));
      sines[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void rope_forward(const RopeShape& shape, const RopeTable& table, float* x) {
  rotate(shape, table, 1, x);
}

void rope_backward(const RopeShape& shape, const RopeTable& table, float* dx) {
  rotate(shape, table, -1, dx);
}

void swiglu_forward(std::uint64_t count, const float* gate, const float* up, float* act) {
#pragma omp simd
  for (std::uint64_t i = 0; i < count; ++i) act[i] = gate[i] * fast_sigmoid(gate[i]) * up[i];
}

void swiglu_backward(std::uint64_t count, const float* d_act, float* gate, float* up) {
#pragma omp simd
  for (std::uint64_t i = 0; i < count; ++i) {
    const float sigmoid = fast_sigmoid(gate[i]);
    const float silu = gate[i] * sigmoid;
    const float d_silu = sigmoid + silu * (1.0F - sigmoid);
    gate[i] = d_act[i] * up[i] * d_silu;
    up[i] = d_act[i] * silu;
  }
}

void embedding_forward(std::span<const std::uint32_t> tokens, const WeightView& embedding,
                       float* out) {
  const std::uint64_t width = embedding.cols;
  const std::uint64_t row_bytes = (size_of(embedding.dtype) * width).value;
  for (std::uint64_t i = 0; i < tokens.size(); ++i) {
    const auto* row = static_cast<const std::byte*>(embedding.data) + tokens[i] * row_bytes;
    strata::convert(out + i * width, DType::fp32, row, embedding.dtype, width);
  }
}

void embedding_backward(std::span<const std::uint32_t> tokens, std::uint64_t width,
                        const float* d_out, const GradView& gradient, std::uint64_t* order,
                        float* row) {
  if (gradient.data == nullptr) return;
  for (std::uint64_t i = 0; i < tokens.size(); ++i) {
    order[i] = (std::uint64_t{tokens[i]} << 32) | i;
  }
  std::sort(order, order + tokens.size());
  for (std::uint64_t i = 0; i < tokens.size();) {
    const std::uint64_t token = order[i] >> 32;
    std::fill_n(row, width, 0.0F);
    for (; i < tokens.size() && order[i] >> 32 == token; ++i) {
      add_row(row, d_out + (order[i] & 0xFFFFFFFFU) * width, width);
    }
    add_to_gradient(gradient, token * width, row, width);
  }
}

void cross_entropy_begin(std::uint64_t tokens, const SoftmaxState& state) {
  std::fill_n(state.maximum, tokens, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, tokens, 0.0);
  std::fill_n(state.target, tokens, 0.0F);
}

void cross_entropy_visit(std::span<const std::uint32_t> targets, const LogitSlab& slab,
                         const SoftmaxState& state) {
  for (std::uint64_t token = 0; token < targets.size(); ++token) {
    const float* row = slab.logits + token * slab.count;
    const float before = state.maximum[token];
    const float maximum = std::max(before, row_maximum(row, slab.count));
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::uint64_t i = 0; i < slab.count; ++i) sum += fast_exp(row[i] - maximum);
    const double rescale = std::exp(static_cast<double>(before) - maximum);
    state.sum[token] = state.sum[token] * rescale + sum;
    state.maximum[token] = maximum;
    const std::uint64_t column = targets[token] - slab.first;
    if (column < slab.count) state.target[token] = row[column];
  }
}

double cross_entropy_total(std::uint64_t tokens, const SoftmaxState& state) {
  double total = 0;
  for (std::uint64_t token = 0; token < tokens; ++token) {
    total += std::log(state.sum[token]) + state.maximum[token] - state.target[token];
  }
  return total;
}

void cross_entropy_backward(std::span<const std::uint32_t> targets, const LogitSlab& slab,
                            const SoftmaxState& state, float scale) {
  for (std::uint64_t token = 0; token < targets.size(); ++token) {
    float* row = slab.logits + token * slab.count;
    const float maximum = state.maximum[token];
    const auto factor = static_cast<float>(scale / state.sum[token]);
#pragma omp simd
    for (std::uint64_t i = 0; i < slab.count; ++i) row[i] = fast_exp(row[i] - maximum) * factor;
    const std::uint64_t column = targets[token] - slab.first;
    if (column < slab.count) row[column] -= scale;
  }
}

}  // namespace train_gpt::kernels
