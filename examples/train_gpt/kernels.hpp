// The math of one layer, one function per operation: forward and backward of linear maps, RMSNorm,
// rotary positions, SwiGLU, the embedding and cross entropy. Everything computes in fp32; matrix
// products go to OpenBLAS. Weights are widened from their dtype a slab of rows at a time, and
// gradients are made in fp32 a slab at a time and then added to the gradient buffer in its dtype,
// so that no widened copy of a whole tensor is ever needed.
//
// Arrays are row-major; `tokens` rows of activations stand for (batch, sequence). All memory is the
// caller's; nothing is allocated. Results have the same bits on every run of one binary on one kind
// of CPU with the same number of BLAS threads.
// Thread: any; functions that share no output may run at once. Every function blocks until done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor_view.hpp"

namespace train_gpt::kernels {

// Threads of OpenBLAS in this process. One per rank keeps the ranks of one host apart.
void set_blas_threads(int count);

// The element type of one matrix product, c = alpha * op(a) op(b) + beta * c.
enum class Transpose : bool { no, yes };
struct MatrixIn {
  const float* data = nullptr;
  std::uint64_t stride = 0;  // elements between rows as stored
  Transpose transpose = Transpose::no;
};
struct MatrixOut {
  float* data = nullptr;
  std::uint64_t stride = 0;
};
struct ProductShape {
  std::uint64_t rows = 0;   // of op(a) and c
  std::uint64_t cols = 0;   // of op(b) and c
  std::uint64_t inner = 0;  // columns of op(a), rows of op(b)
};
void multiply(const ProductShape& shape, float alpha, MatrixIn a, MatrixIn b, float beta,
              MatrixOut c);

enum class Write : bool { overwrite, add };

// Rows of a (rows, cols) tensor that are widened or differentiated at a time. A function of the
// shape alone, so that it does not change results between runs or ranks.
std::uint64_t slab_rows(std::uint64_t rows, std::uint64_t cols);

// Fp32 elements of a tensor from `offset_elems` on: the stored ones if they are fp32, otherwise
// widened into `scratch`.
const float* widened(const WeightView& weight, std::uint64_t offset_elems, std::uint64_t count,
                     float* scratch);

// gradient[offset + i] += values[i], rounded to the gradient's dtype.
void add_to_gradient(const GradView& gradient, std::uint64_t offset_elems, const float* values,
                     std::uint64_t count);

// Linear map y = x w^T with w (out, in); x (tokens, in), y (tokens, out). `scratch` holds a slab.
void linear_forward(const float* x, std::uint64_t tokens, const WeightView& w, float* y,
                    Write write, float* scratch);
void linear_backward_input(const float* dy, std::uint64_t tokens, const WeightView& w, float* dx,
                           Write write, float* scratch);
void linear_backward_weight(const float* dy, const float* x, std::uint64_t tokens,
                            const WeightView& w, const GradView& gradient, float* scratch);

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich, "Root Mean Square Layer
// Normalization"). The backward pass adds to `dx`, which carries the residual stream's gradient.
struct NormShape {
  std::uint64_t tokens = 0;
  std::uint64_t width = 0;
  float eps = 0;
};
void rmsnorm_forward(const NormShape& shape, const float* x, const float* weight, float* y);
void rmsnorm_backward(const NormShape& shape, const float* x, const float* weight, const float* dy,
                      float* dx, float* dweight);

// Rotary positions (Su et al., "RoFormer"), in the pairing of Llama: element i of a head turns
// with element i + head_dim / 2. `backward` turns the other way.
struct RopeTable {
  const float* cosines = nullptr;  // (sequence, head_dim / 2)
  const float* sines = nullptr;
};
struct RopeShape {
  std::uint64_t tokens = 0;
  std::uint64_t sequence = 0;
  std::uint64_t heads = 0;
  std::uint64_t head_dim = 0;
};
void fill_rope_table(std::uint64_t sequence, std::uint64_t head_dim, double theta, float* cosines,
                     float* sines);
void rope_forward(const RopeShape& shape, const RopeTable& table, float* x);
void rope_backward(const RopeShape& shape, const RopeTable& table, float* dx);

// act = silu(gate) * up (Shazeer, "GLU Variants Improve Transformer"); `act` may be `gate`. The
// backward pass replaces gate and up by their gradients.
void swiglu_forward(std::uint64_t count, const float* gate, const float* up, float* act);
void swiglu_backward(std::uint64_t count, const float* d_act, float* gate, float* up);

void embedding_forward(std::span<const std::uint32_t> tokens, const WeightView& embedding,
                       float* out);
// Sums the rows of one token in fp32 before it rounds into the gradient, because a token recurs
// often. `order` holds tokens.size() elements, `row` one row.
void embedding_backward(std::span<const std::uint32_t> tokens, std::uint64_t width,
                        const float* d_out, const GradView& gradient, std::uint64_t* order,
                        float* row);

// Softmax cross entropy over logits that come a slab of the vocabulary at a time, for all tokens.
struct LogitSlab {
  float* logits = nullptr;  // (tokens, count)
  std::uint64_t first = 0;  // vocabulary index of column 0
  std::uint64_t count = 0;
};
struct SoftmaxState {
  float* maximum = nullptr;  // per token, over the slabs so far
  double* sum = nullptr;     // of exp(logit - maximum)
  float* target = nullptr;   // the target's logit
};
void cross_entropy_begin(std::uint64_t tokens, const SoftmaxState& state);
void cross_entropy_visit(std::span<const std::uint32_t> targets, const LogitSlab& slab,
                         const SoftmaxState& state);
// The sum of the tokens' losses, in fp64 in token order.
double cross_entropy_total(std::uint64_t tokens, const SoftmaxState& state);
// Replaces the logits of a visited slab by (softmax - one-hot target) * scale.
void cross_entropy_backward(std::span<const std::uint32_t> targets, const LogitSlab& slab,
                            const SoftmaxState& state, float scale);

}  // namespace train_gpt::kernels
