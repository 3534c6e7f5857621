#include "support/reference_trainer.hpp"

#include <algorithm>
#include <cmath>

#include "strata/element_ops.hpp"

namespace strata::testing {
namespace {

std::string block_tensor(std::uint32_t layer, const char* name) {
  return "block." + std::to_string(layer) + "/" + name;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

struct ReferenceTrainer::Block {
  Matrix in, normed1, q, k, v, attended, mid, normed2, gate, up, act;
};

ReferenceTrainer::ReferenceTrainer(const train_gpt::GptConfig& config,
                                   const ReferenceOptions& options, const Fill& fill)
    : config_(config), options_(options) {
  for (const UnitSpec& unit : train_gpt::units(config)) {
    for (const TensorSpec& spec : unit.tensors) {
      std::uint64_t count = 1;
      for (const std::uint64_t extent : spec.shape) count *= extent;
      std::vector<float> values(count);
      fill(unit.name, spec.name, values);
      Tensor& tensor = tensors_[unit.name + "/" + spec.name];
      tensor.master.assign(values.begin(), values.end());
      tensor.gradient.assign(count, 0);
      tensor.moment1.assign(count, 0);
      tensor.moment2.assign(count, 0);
      tensor.decays = spec.shape.size() > 1;
      publish(tensor);
    }
  }
}

void ReferenceTrainer::publish(Tensor& tensor) const {
  tensor.param = tensor.master;
  if (options_.param_dtype == DType::fp32) return;
  for (double& value : tensor.param) {
    auto wide = static_cast<float>(value);
    std::uint16_t narrow = 0;
    convert(&narrow, options_.param_dtype, &wide, DType::fp32, 1);
    convert(&wide, DType::fp32, &narrow, options_.param_dtype, 1);
    value = wide;
  }
}

void ReferenceTrainer::set_weight(const std::string& name, std::uint64_t index, double value) {
  Tensor& tensor = tensors_.at(name);
  tensor.master.at(index) = value;
  publish(tensor);
}

ReferenceTrainer::Tensor& ReferenceTrainer::output_projection() {
  return tensors_.at(config_.tied_embeddings ? "embed/embedding" : "head/lm_head");
}

ReferenceTrainer::Matrix ReferenceTrainer::linear(const Matrix& x, const Tensor& w) const {
  const std::uint64_t in = x[0].size();
  const std::uint64_t out = w.param.size() / in;
  Matrix y(x.size(), Row(out));
  for (std::uint64_t t = 0; t < x.size(); ++t) {
    for (std::uint64_t o = 0; o < out; ++o) {
      for (std::uint64_t i = 0; i < in; ++i) y[t][o] += x[t][i] * w.param[o * in + i];
    }
  }
  return y;
}

void ReferenceTrainer::linear_backward(const Matrix& x, Tensor& w, const Matrix& dy,
                                       Matrix& dx) const {
  const std::uint64_t in = x[0].size();
  for (std::uint64_t t = 0; t < x.size(); ++t) {
    for (std::uint64_t o = 0; o < dy[t].size(); ++o) {
      for (std::uint64_t i = 0; i < in; ++i) {
        dx[t][i] += dy[t][o] * w.param[o * in + i];
        w.gradient[o * in + i] += dy[t][o] * x[t][i];
      }
    }
  }
}

ReferenceTrainer::Matrix ReferenceTrainer::norm(const Matrix& x, const Tensor& w) const {
  Matrix y = x;
  for (Row& row : y) {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(row.size()) + config_.norm_eps);
    for (std::uint64_t i = 0; i < row.size(); ++i) row[i] = row[i] / rms * w.param[i];
  }
  return y;
}

// From y_i = x_i w_i / r with r^2 = sum(x^2) / n + eps, so dr / dx_j = x_j / (n r).
void ReferenceTrainer::norm_backward(const Matrix& x, Tensor& w, const Matrix& dy,
                                     Matrix& dx) const {
  const std::uint64_t width = x[0].size();
  const auto n = static_cast<double>(width);
  for (std::uint64_t t = 0; t < x.size(); ++t) {
    double squares = 0;
    double dot = 0;
    for (std::uint64_t i = 0; i < width; ++i) {
      squares += x[t][i] * x[t][i];
      dot += dy[t][i] * w.param[i] * x[t][i];
    }
    const double r = std::sqrt(squares / n + config_.norm_eps);
    for (std::uint64_t i = 0; i < width; ++i) {
      dx[t][i] += dy[t][i] * w.param[i] / r - x[t][i] * dot / (n * r * r * r);
      w.gradient[i] += dy[t][i] * x[t][i] / r;
    }
  }
}

void ReferenceTrainer::rotate(Matrix& x, double direction) const {
  const std::uint64_t head_dim = config_.head_dim();
  const std::uint64_t half = head_dim / 2;
  for (std::uint64_t t = 0; t < x.size(); ++t) {
    for (std::uint64_t head = 0; head < x[t].size(); head += head_dim) {
      for (std::uint64_t i = 0; i < half; ++i) {
        const double turns = static_cast<double>(2 * i) / static_cast<double>(head_dim);
        const double angle =
            direction * static_cast<double>(t) / std::pow(double{config_.rope_theta}, turns);
        const double a = x[t][head + i];
        const double b = x[t][head + half + i];
        x[t][head + i] = a * std::cos(angle) - b * std::sin(angle);
        x[t][head + half + i] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
}

std::vector<double> ReferenceTrainer::probabilities(const Block& block, std::uint64_t head,
                                                    std::uint64_t query) const {
  const std::uint64_t dim = config_.head_dim();
  const std::uint64_t q0 = head * dim;
  const std::uint64_t k0 = head * config_.kv_heads / config_.heads * dim;
  std::vector<double> p(query + 1);
  for (std::uint64_t key = 0; key <= query; ++key) {
    for (std::uint64_t i = 0; i < dim; ++i) {
      p[key] += block.q[query][q0 + i] * block.k[key][k0 + i];
    }
    p[key] /= std::sqrt(static_cast<double>(dim));
  }
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - largest);
  for (double& value : p) value /= sum;
  return p;
}

ReferenceTrainer::Matrix ReferenceTrainer::attend(const Block& block) const {
  const std::uint64_t dim = config_.head_dim();
  Matrix out(block.q.size(), Row(config_.hidden));
  for (std::uint64_t head = 0; head < config_.heads; ++head) {
    const std::uint64_t k0 = head * config_.kv_heads / config_.heads * dim;
    for (std::uint64_t query = 0; query < block.q.size(); ++query) {
      const std::vector<double> p = probabilities(block, head, query);
      for (std::uint64_t key = 0; key <= query; ++key) {
        for (std::uint64_t i = 0; i < dim; ++i) {
          out[query][head * dim + i] += p[key] * block.v[key][k0 + i];
        }
      }
    }
  }
  return out;
}

void ReferenceTrainer::attend_backward(const Block& block, const Matrix& d_out, Matrix& dq,
                                       Matrix& dk, Matrix& dv) const {
  const std::uint64_t dim = config_.head_dim();
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  for (std::uint64_t head = 0; head < config_.heads; ++head) {
    const std::uint64_t q0 = head * dim;
    const std::uint64_t k0 = head * config_.kv_heads / config_.heads * dim;
    for (std::uint64_t query = 0; query < block.q.size(); ++query) {
      const std::vector<double> p = probabilities(block, head, query);
      std::vector<double> dp(p.size());
      double mean = 0;
      for (std::uint64_t key = 0; key <= query; ++key) {
        for (std::uint64_t i = 0; i < dim; ++i) {
          dp[key] += d_out[query][q0 + i] * block.v[key][k0 + i];
          dv[key][k0 + i] += p[key] * d_out[query][q0 + i];
        }
        mean += p[key] * dp[key];
      }
      for (std::uint64_t key = 0; key <= query; ++key) {
        const double d_score = p[key] * (dp[key] - mean) * scale;
        for (std::uint64_t i = 0; i < dim; ++i) {
          dq[query][q0 + i] += d_score * block.k[key][k0 + i];
          dk[key][k0 + i] += d_score * block.q[query][q0 + i];
        }
      }
    }
  }
}

ReferenceTrainer::Matrix ReferenceTrainer::block_forward(std::uint32_t layer, Block& b) {
  const auto w = [&](const char* name) -> Tensor& {
    return tensors_.at(block_tensor(layer, name));
  };
  b.normed1 = norm(b.in, w("attn_norm"));
  b.q = linear(b.normed1, w("wq"));
  b.k = linear(b.normed1, w("wk"));
  b.v = linear(b.normed1, w("wv"));
  rotate(b.q, 1);
  rotate(b.k, 1);
  b.attended = attend(b);
  b.mid = linear(b.attended, w("wo"));
  for (std::uint64_t t = 0; t < b.in.size(); ++t) {
    for (std::uint64_t i = 0; i < config_.hidden; ++i) b.mid[t][i] += b.in[t][i];
  }
  b.normed2 = norm(b.mid, w("ffn_norm"));
  b.gate = linear(b.normed2, w("w_gate"));
  b.up = linear(b.normed2, w("w_up"));
  b.act = b.gate;
  for (std::uint64_t t = 0; t < b.in.size(); ++t) {
    for (std::uint64_t i = 0; i < config_.ffn; ++i) {
      b.act[t][i] = b.gate[t][i] * sigmoid(b.gate[t][i]) * b.up[t][i];
    }
  }
  Matrix out = linear(b.act, w("w_down"));
  for (std::uint64_t t = 0; t < b.in.size(); ++t) {
    for (std::uint64_t i = 0; i < config_.hidden; ++i) out[t][i] += b.mid[t][i];
  }
  return out;
}

void ReferenceTrainer::block_backward(std::uint32_t layer, const Block& b, Matrix& d) {
  const auto w = [&](const char* name) -> Tensor& {
    return tensors_.at(block_tensor(layer, name));
  };
  const std::uint64_t tokens = b.in.size();
  const auto zeros = [&](std::uint64_t width) { return Matrix(tokens, Row(width)); };

  Matrix d_act = zeros(config_.ffn);
  linear_backward(b.act, w("w_down"), d, d_act);
  Matrix d_gate = zeros(config_.ffn);
  Matrix d_up = zeros(config_.ffn);
  for (std::uint64_t t = 0; t < tokens; ++t) {
    for (std::uint64_t i = 0; i < config_.ffn; ++i) {
      const double s = sigmoid(b.gate[t][i]);
      d_gate[t][i] = d_act[t][i] * b.up[t][i] * (s + b.gate[t][i] * s * (1 - s));
      d_up[t][i] = d_act[t][i] * b.gate[t][i] * s;
    }
  }
  Matrix d_normed2 = zeros(config_.hidden);
  linear_backward(b.normed2, w("w_gate"), d_gate, d_normed2);
  linear_backward(b.normed2, w("w_up"), d_up, d_normed2);
  norm_backward(b.mid, w("ffn_norm"), d_normed2, d);

  Matrix d_attended = zeros(config_.hidden);
  linear_backward(b.attended, w("wo"), d, d_attended);
  Matrix dq = zeros(config_.hidden);
  Matrix dk = zeros(config_.kv_width());
  Matrix dv = zeros(config_.kv_width());
  attend_backward(b, d_attended, dq, dk, dv);
  rotate(dq, -1);
  rotate(dk, -1);
  Matrix d_normed1 = zeros(config_.hidden);
  linear_backward(b.normed1, w("wq"), dq, d_normed1);
  linear_backward(b.normed1, w("wk"), dk, d_normed1);
  linear_backward(b.normed1, w("wv"), dv, d_normed1);
  norm_backward(b.in, w("attn_norm"), d_normed1, d);
}

double ReferenceTrainer::run_sequence(std::span<const std::uint32_t> inputs,
                                      std::span<const std::uint32_t> targets, bool backward) {
  const std::uint64_t tokens = inputs.size();
  const std::uint64_t hidden = config_.hidden;
  Tensor& embedding = tensors_.at("embed/embedding");
  Tensor& final_norm = tensors_.at("head/final_norm");

  Matrix x(tokens, Row(hidden));
  for (std::uint64_t t = 0; t < tokens; ++t) {
    for (std::uint64_t i = 0; i < hidden; ++i) x[t][i] = embedding.param[inputs[t] * hidden + i];
  }
  std::vector<Block> blocks(config_.layers);
  for (std::uint32_t layer = 0; layer < config_.layers; ++layer) {
    blocks[layer].in = x;
    x = block_forward(layer, blocks[layer]);
  }
  const Matrix normed = norm(x, final_norm);
  Matrix logits = linear(normed, output_projection());

  double loss = 0;
  for (std::uint64_t t = 0; t < tokens; ++t) {
    const double largest = *std::max_element(logits[t].begin(), logits[t].end());
    double sum = 0;
    for (const double logit : logits[t]) sum += std::exp(logit - largest);
    loss += std::log(sum) + largest - logits[t][targets[t]];
    for (double& logit : logits[t]) logit = std::exp(logit - largest) / sum;
    logits[t][targets[t]] -= 1;
  }
  if (!backward) return loss;

  Matrix d_normed(tokens, Row(hidden));
  linear_backward(normed, output_projection(), logits, d_normed);
  Matrix d(tokens, Row(hidden));
  norm_backward(x, final_norm, d_normed, d);
  for (std::uint32_t layer = config_.layers; layer-- > 0;) block_backward(layer, blocks[layer], d);
  for (std::uint64_t t = 0; t < tokens; ++t) {
    for (std::uint64_t i = 0; i < hidden; ++i)
      embedding.gradient[inputs[t] * hidden + i] += d[t][i];
  }
  return loss;
}

double ReferenceTrainer::loss(std::span<const std::uint32_t> inputs,
                              std::span<const std::uint32_t> targets) {
  double total = 0;
  for (std::uint64_t row = 0; row < inputs.size(); row += config_.sequence) {
    total += run_sequence(inputs.subspan(row, config_.sequence),
                          targets.subspan(row, config_.sequence), false);
  }
  return total;
}

double ReferenceTrainer::accumulate(std::span<const std::uint32_t> inputs,
                                    std::span<const std::uint32_t> targets) {
  double total = 0;
  for (std::uint64_t row = 0; row < inputs.size(); row += config_.sequence) {
    total += run_sequence(inputs.subspan(row, config_.sequence),
                          targets.subspan(row, config_.sequence), true);
  }
  return total;
}

double ReferenceTrainer::apply(double gradient_scale, double learning_rate) {
  double squares = 0;
  for (const auto& [name, tensor] : tensors_) {
    for (const double g : tensor.gradient) squares += g * gradient_scale * g * gradient_scale;
  }
  const double norm = std::sqrt(squares);
  const bool clips = options_.clip_norm > 0 && norm > options_.clip_norm;
  const double factor = gradient_scale * (clips ? options_.clip_norm / norm : 1);

  ++steps_;
  const double correction1 = 1 - std::pow(options_.beta1, static_cast<double>(steps_));
  const double correction2 = 1 - std::pow(options_.beta2, static_cast<double>(steps_));
  for (auto& [name, tensor] : tensors_) {
    const double decay = tensor.decays ? options_.weight_decay : 0;
    for (std::uint64_t i = 0; i < tensor.master.size(); ++i) {
      const double g = tensor.gradient[i] * factor;
      double& m = tensor.moment1[i];
      double& v = tensor.moment2[i];
      m = options_.beta1 * m + (1 - options_.beta1) * g;
      v = options_.beta2 * v + (1 - options_.beta2) * g * g;
      const double direction = m / correction1 / (std::sqrt(v / correction2) + options_.epsilon);
      tensor.master[i] -= learning_rate * (direction + decay * tensor.master[i]);
    }
    std::fill(tensor.gradient.begin(), tensor.gradient.end(), 0.0);
    publish(tensor);
  }
  return norm;
}

}  // namespace strata::testing
