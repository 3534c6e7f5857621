#include "workspace.hpp"

#include <algorithm>

#include "attention.hpp"

namespace train_gpt {
namespace {

using strata::Bytes;

// Hands out consecutive arrays. Without memory it only counts, so that the size and the layout
// come from the same code.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <class T>
  void take(T*& array, std::uint64_t count) {
    constexpr std::uint64_t kAlignBytes = 64;  // a cache line, and the widest vector
    if (memory_ != nullptr) array = reinterpret_cast<T*>(memory_ + used_bytes_);
    used_bytes_ += strata::round_up(count * sizeof(T), kAlignBytes);
  }

  std::uint64_t used_bytes() const { return used_bytes_; }
  void rewind(std::uint64_t used_bytes) { used_bytes_ = used_bytes; }

 private:
  std::byte* memory_;
  std::uint64_t used_bytes_ = 0;
};

std::uint64_t largest_slab_elems(const GptConfig& c) {
  const auto slab = [](std::uint64_t rows, std::uint64_t cols) {
    return kernels::slab_rows(rows, cols) * cols;
  };
  return std::max({slab(c.hidden, c.hidden), slab(c.kv_width(), c.hidden), slab(c.ffn, c.hidden),
                   slab(c.hidden, c.ffn), slab(c.vocab, c.hidden)});
}

void carve_shared(const GptConfig& c, Workspace* w, Carver& carver) {
  const std::uint64_t table = std::uint64_t{c.sequence} * c.head_dim() / 2;
  carver.take(w->cosines, table);
  carver.take(w->sines, table);
  carver.take(w->slab, largest_slab_elems(c));
  carver.take(w->norm_weight, c.hidden);
  carver.take(w->norm_grad, c.hidden);
}

void carve_block(const GptConfig& c, Workspace* w, Carver& carver) {
  const std::uint64_t hidden = w->tokens * c.hidden;
  const std::uint64_t kv = w->tokens * c.kv_width();
  const std::uint64_t ffn = w->tokens * c.ffn;
  carver.take(w->scores, attention_scratch_elems(c.sequence));
  carver.take(w->normed, hidden);
  carver.take(w->q, hidden);
  carver.take(w->k, kv);
  carver.take(w->v, kv);
  carver.take(w->attn, hidden);
  carver.take(w->mid, hidden);
  carver.take(w->gate, std::max(ffn, kv));
  carver.take(w->up, std::max(ffn, kv));
  carver.take(w->act, std::max(ffn, hidden));
}

void carve_head(const GptConfig& c, Workspace* w, Carver& carver) {
  carver.take(w->head_normed, w->tokens * c.hidden);
  carver.take(w->head_d_normed, w->tokens * c.hidden);
  carver.take(w->logits, w->tokens * kernels::slab_rows(c.vocab, c.hidden));
  carver.take(w->softmax.maximum, w->tokens);
  carver.take(w->softmax.sum, w->tokens);
  carver.take(w->softmax.target, w->tokens);
}

// Lays out `w` over `memory` and returns the bytes it takes.
std::uint64_t carve(const GptConfig& config, Workspace* w, std::byte* memory) {
  Carver carver(memory);
  carve_shared(config, w, carver);
  const std::uint64_t common = carver.used_bytes();
  std::uint64_t most = common;
  // Block, head and embedding never compute at the same time, so they start at the same place.
  const auto alternative = [&](auto&& take_arrays) {
    carver.rewind(common);
    take_arrays();
    most = std::max(most, carver.used_bytes());
  };
  alternative([&] { carve_block(config, w, carver); });
  alternative([&] { carve_head(config, w, carver); });
  alternative([&] { carver.take(w->token_order, w->tokens); });
  return most;
}

}  // namespace

Bytes activation_bytes(const GptConfig& config, std::uint64_t batch) {
  return Bytes{batch * config.sequence * config.hidden * sizeof(float)};
}

Bytes checkpoint_bytes(const GptConfig& config, std::uint64_t batch) {
  return activation_bytes(config, batch) * (std::uint64_t{config.layers} + 1);
}

Bytes workspace_bytes(const GptConfig& config, std::uint64_t batch) {
  return Bytes{Workspace(config, batch, nullptr).size_bytes};
}

Workspace::Workspace(const GptConfig& model, std::uint64_t micro_batch, std::byte* memory)
    : config(model), batch(micro_batch), tokens(micro_batch * model.sequence) {
  size_bytes = carve(config, this, memory);
  if (memory == nullptr) return;
  kernels::fill_rope_table(config.sequence, config.head_dim(), config.rope_theta, cosines, sines);
}

}  // namespace train_gpt
