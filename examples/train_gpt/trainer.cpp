#include "trainer.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "failure.hpp"
#include "init.hpp"

namespace train_gpt {
namespace {

using strata::Bytes;
using strata::GatherLease;
using strata::GradientLease;
using strata::TensorId;
using strata::Tier;

constexpr Bytes kAlign{64};  // a cache line, and what a Workspace asks for
constexpr TensorId kEmbedding{0};
constexpr TensorId kFinalNorm{0};
constexpr TensorId kLmHead{1};

Bytes token_bytes(const TrainerOptions& options) {
  return round_up(Bytes{2 * options.tokens_of_micro_batch() * sizeof(std::uint32_t)}, kAlign);
}

std::uint32_t loss_slots(const TrainerOptions& options) {
  return std::max(options.accumulation, options.eval_batches);
}

Bytes loss_bytes(const TrainerOptions& options) {
  return round_up(Bytes{loss_slots(options) * sizeof(double)}, kAlign);
}

Bytes aligned_workspace_bytes(const TrainerOptions& options) {
  return round_up(workspace_bytes(options.model, options.batch), kAlign);
}

Bytes aligned_activation_bytes(const TrainerOptions& options) {
  return round_up(activation_bytes(options.model, options.batch), kAlign);
}

Bytes device_scratch_bytes(const TrainerOptions& options) {
  return aligned_workspace_bytes(options) +
         aligned_activation_bytes(options) * (std::uint64_t{options.model.layers} + 1) +
         token_bytes(options) + loss_bytes(options);
}

Bytes host_scratch_bytes(const TrainerOptions& options) {
  return 2 * token_bytes(options) + loss_bytes(options);
}

// Cuts the next `size` off the front of `memory`.
std::byte* take(std::span<std::byte>& memory, Bytes size) {
  std::byte* piece = memory.data();
  memory = memory.subspan(size.value);
  return piece;
}

Bytes size_of_view(const WeightView& view) { return size_of(view.dtype) * (view.rows * view.cols); }

template <class View>
std::array<View, 9> listed(const BlockTensors<View>& t) {
  return {t.attn_norm, t.wq, t.wk, t.wv, t.wo, t.ffn_norm, t.w_gate, t.w_up, t.w_down};
}

}  // namespace

strata::Model make_model(const GptConfig& config) {
  strata::Model model;
  for (strata::UnitSpec& unit : units(config)) {
    model.add_unit(std::move(unit.name), std::move(unit.tensors), unit.options);
  }
  return model;
}

strata::SessionOptions Trainer::session_options(const TrainerOptions& options) {
  return {.device_scratch = device_scratch_bytes(options),
          .host_scratch = host_scratch_bytes(options),
          .log = {}};
}

Trainer::Trainer(strata::Session& session, Dataset& data, const TrainerOptions& options)
    : session_(session),
      data_(data),
      options_(options),
      device_(session.device()),
      stream_(device_.create_stream("compute")),
      head_{options.model.layers + 1},
      device_scratch_(session.scratch(Tier::device, device_scratch_bytes(options))),
      host_scratch_(session.scratch(Tier::host, host_scratch_bytes(options))) {
  lay_out_device(device_scratch_.memory());
  lay_out_host(host_scratch_.memory());
  writes(workspace_memory_.data(), Bytes{workspace_memory_.size()});
  launch([this] { workspace_.emplace(options_.model, options_.batch, workspace_memory_.data()); });
  device_.synchronize(device_.record(stream_));
}

// Scratch must not go back while launched work still uses it.
Trainer::~Trainer() {
  try {
    device_.synchronize(device_.record(stream_));
  } catch (const strata::Error&) {
    // A device that has failed runs nothing any more.
  }
}

void Trainer::lay_out_device(std::span<std::byte> memory) {
  const std::uint64_t tokens = options_.tokens_of_micro_batch();
  const Bytes workspace = aligned_workspace_bytes(options_);
  workspace_memory_ = {take(memory, workspace), workspace.value};
  for (std::uint32_t i = 0; i <= options_.model.layers; ++i) {
    std::byte* piece = take(memory, aligned_activation_bytes(options_));
    checkpoints_.push_back(reinterpret_cast<float*>(piece));
  }
  inputs_ = {reinterpret_cast<std::uint32_t*>(take(memory, token_bytes(options_))), tokens};
  targets_ = {inputs_.data() + tokens, tokens};
  losses_ = {reinterpret_cast<double*>(take(memory, loss_bytes(options_))), loss_slots(options_)};
}

void Trainer::lay_out_host(std::span<std::byte> memory) {
  for (HostBatch& batch : host_batches_) {
    batch.tokens = {reinterpret_cast<std::uint32_t*>(take(memory, token_bytes(options_))),
                    2 * options_.tokens_of_micro_batch()};
  }
  host_losses_ = {reinterpret_cast<double*>(memory.data()), loss_slots(options_)};
}

void Trainer::initialize_weights() {
  const strata::Model& model = session_.model();
  for (std::uint32_t u = 0; u < model.units().size(); ++u) {
    const strata::UnitSpec& unit = model.units()[u];
    session_.initialize(
        strata::UnitId{u}, [&](const strata::TensorSlice& slice, std::span<float> values) {
          fill_initial(options_.model, options_.seed, unit.name,
                       unit.tensors[slice.tensor.value].name, slice.offset_elems, values);
        });
  }
}

Trainer::StepReport Trainer::step(std::uint64_t index, std::vector<strata::GroupRates> groups) {
  const double busy_before = device_.busy_seconds(stream_);
  const std::uint64_t tokens_of_step =
      options_.tokens_of_micro_batch() * options_.accumulation * session_.communicator().size();
  StepReport report;
  strata::Step step =
      session_.begin_step({.pattern = "train",
                           .micro_batches = options_.accumulation,
                           .gradient_scale = 1.0 / static_cast<double>(tokens_of_step),
                           .groups = std::move(groups)});
  for (std::uint32_t m = 0; m < options_.accumulation; ++m) {
    upload_batch(Split::train, {index, m, session_.communicator().rank().value});
    forward();
    head_backward(m);
    backward();
  }
  const strata::Event ready = download_losses(options_.accumulation);
  report.result = step.end();
  report.loss_sum = sum_losses(options_.accumulation, ready);
  report.compute_seconds = device_.busy_seconds(stream_) - busy_before;
  return report;
}

double Trainer::evaluate() {
  strata::Step step = session_.begin_step({.pattern = "eval", .groups = {}});
  for (std::uint32_t m = 0; m < options_.eval_batches; ++m) {
    upload_batch(Split::eval, {0, m, session_.communicator().rank().value});
    forward();
    head_loss(m);
  }
  const strata::Event ready = download_losses(options_.eval_batches);
  // Nothing was reduced, so this changes no weight.
  [[maybe_unused]] const strata::StepResult unchanged = step.end();
  return sum_losses(options_.eval_batches, ready);
}

void Trainer::upload_batch(Split split, const BatchId& id) {
  HostBatch& batch = host_batches_[next_host_batch_];
  next_host_batch_ ^= 1U;
  if (batch.copied.recorded()) device_.synchronize(batch.copied);
  const std::uint64_t tokens = options_.tokens_of_micro_batch();
  blaming_data([&] {
    data_.read_batch(options_.seed, split, id, batch.tokens.first(tokens),
                     batch.tokens.last(tokens));
  });
  device_.copy(stream_, inputs_.data(), batch.tokens.data(), Bytes{batch.tokens.size_bytes()},
               strata::CopyKind::host_to_device);
  batch.copied = device_.record(stream_);
}

void Trainer::forward() {
  const Bytes activation = activation_bytes(options_.model, options_.batch);
  {
    const GatherLease lease = session_.gather(embed_, stream_);
    const WeightView embedding = embedding_view(lease);
    reads_weights(embedding);
    reads(inputs_.data(), Bytes{inputs_.size_bytes()});
    writes(checkpoints_[0], activation);
    launch([this, embedding] { embed_forward(embedding, inputs_, checkpoints_[0]); });
  }
  for (std::uint32_t layer = 0; layer < options_.model.layers; ++layer) {
    const GatherLease lease = session_.gather(block(layer), stream_);
    const BlockWeights weights = block_weights(options_.model, lease);
    for (const WeightView& view : listed(weights)) reads_weights(view);
    reads(checkpoints_[layer], activation);
    writes(checkpoints_[layer + 1], activation);
    uses_workspace();
    launch([this, weights, layer] {
      block_forward(weights, checkpoints_[layer], checkpoints_[layer + 1], *workspace_);
    });
  }
}

void Trainer::head_loss(std::uint32_t slot) {
  const GatherLease head = session_.gather(head_, stream_);
  GatherLease embed;
  if (options_.model.tied_embeddings) embed = session_.gather(embed_, stream_);
  const HeadWeights weights = head_views(head, embed);
  reads_weights(weights.final_norm);
  reads_weights(weights.output);
  reads(checkpoints_.back(), activation_bytes(options_.model, options_.batch));
  reads(targets_.data(), Bytes{targets_.size_bytes()});
  writes(&losses_[slot], Bytes{sizeof(double)});
  uses_workspace();
  launch([this, weights, slot] {
    losses_[slot] = train_gpt::head_loss(weights, checkpoints_.back(), targets_, *workspace_);
  });
}

// With tied embeddings the output projection's gradient belongs to another unit than the norm's,
// and a session lends one gradient buffer at a time.
void Trainer::head_backward(std::uint32_t slot) {
  GatherLease head = session_.gather(head_, stream_);
  GatherLease embed;
  if (options_.model.tied_embeddings) embed = session_.gather(embed_, stream_);
  GradientLease lease = session_.gradients(output_unit(), stream_);
  const HeadWeights weights = head_views(head, embed);
  const GradView output = output_gradient(lease);
  float* d = checkpoints_.back();
  reads_weights(weights.final_norm);
  reads_weights(weights.output);
  updates(d, activation_bytes(options_.model, options_.batch));
  reads(targets_.data(), Bytes{targets_.size_bytes()});
  writes(&losses_[slot], Bytes{sizeof(double)});
  updates_gradient(output, weights.output);
  uses_workspace();
  launch([this, weights, output, d, slot] {
    losses_[slot] = train_gpt::head_backward(weights, d, targets_, 1.0F, d, output, *workspace_);
  });
  head = {};
  embed = {};
  if (options_.model.tied_embeddings) {
    session_.reduce(std::move(lease), stream_);
    lease = session_.gradients(head_, stream_);
  }
  const auto norm_view = lease[kFinalNorm];
  const GradView norm{norm_view.data, norm_view.dtype};
  reads(workspace_->norm_grad, Bytes{options_.model.hidden * sizeof(float)});
  updates_gradient(norm, weights.final_norm);
  launch([this, norm] { head_norm_gradient(norm, *workspace_); });
  session_.reduce(std::move(lease), stream_);
}

void Trainer::backward() {
  const Bytes activation = activation_bytes(options_.model, options_.batch);
  float* d = checkpoints_.back();
  for (std::uint32_t layer = options_.model.layers; layer-- > 0;) {
    GatherLease gathered = session_.gather(block(layer), stream_);
    GradientLease lease = session_.gradients(block(layer), stream_);
    const BlockWeights weights = block_weights(options_.model, gathered);
    const BlockGrads grads = block_grads(lease);
    for (std::size_t i = 0; i < listed(weights).size(); ++i) {
      reads_weights(listed(weights)[i]);
      updates_gradient(listed(grads)[i], listed(weights)[i]);
    }
    reads(checkpoints_[layer], activation);
    updates(d, activation);
    uses_workspace();
    launch([this, weights, grads, d, layer] {
      block_backward(weights, checkpoints_[layer], d, grads, *workspace_);
    });
    gathered = {};
    session_.reduce(std::move(lease), stream_);
  }
  GradientLease lease = session_.gradients(embed_, stream_);
  const auto view = lease[kEmbedding];
  const GradView gradient{view.data, view.dtype};
  reads(inputs_.data(), Bytes{inputs_.size_bytes()});
  reads(d, activation);
  updates(view.data, size_of(view.dtype) * view.count_elems);
  uses_workspace();
  launch([this, gradient, d] { embed_backward(inputs_, d, gradient, *workspace_); });
  session_.reduce(std::move(lease), stream_);
}

strata::Event Trainer::download_losses(std::uint32_t count) {
  device_.copy(stream_, host_losses_.data(), losses_.data(), Bytes{count * sizeof(double)},
               strata::CopyKind::device_to_host);
  return device_.record(stream_);
}

double Trainer::sum_losses(std::uint32_t count, strata::Event ready) const {
  device_.synchronize(ready);
  double sum = 0;
  for (std::uint32_t m = 0; m < count; ++m) sum += host_losses_[m];
  return sum;
}

template <class Function>
void Trainer::launch(Function&& function) {
  device_.launch(stream_, std::forward<Function>(function), accesses_);
  accesses_.clear();
}

void Trainer::reads(const void* data, Bytes size) { accesses_.push_back({data, size, false}); }
void Trainer::writes(void* data, Bytes size) { accesses_.push_back({data, size, true}); }
void Trainer::updates(void* data, Bytes size) {
  reads(data, size);
  writes(data, size);
}

// The rotary table stands before the scratch and is written once, by the workspace's constructor.
void Trainer::uses_workspace() {
  std::byte* scratch = reinterpret_cast<std::byte*>(workspace_->slab);
  const auto table_bytes = static_cast<std::uint64_t>(scratch - workspace_memory_.data());
  reads(workspace_memory_.data(), Bytes{table_bytes});
  writes(scratch, Bytes{workspace_memory_.size() - table_bytes});
}

void Trainer::reads_weights(const WeightView& view) { reads(view.data, size_of_view(view)); }

void Trainer::updates_gradient(const GradView& view, const WeightView& shape) {
  updates(view.data, size_of(view.dtype) * (shape.rows * shape.cols));
}

WeightView Trainer::embedding_view(const GatherLease& embed) const {
  const auto tensor = embed[kEmbedding];
  return {tensor.data, tensor.dtype, options_.model.vocab, options_.model.hidden};
}

HeadWeights Trainer::head_views(const GatherLease& head, const GatherLease& embed) const {
  const auto norm = head[kFinalNorm];
  HeadWeights weights{{norm.data, norm.dtype, options_.model.hidden, 1}, {}};
  if (options_.model.tied_embeddings) {
    weights.output = embedding_view(embed);
  } else {
    const auto output = head[kLmHead];
    weights.output = {output.data, output.dtype, options_.model.vocab, options_.model.hidden};
  }
  return weights;
}

GradView Trainer::output_gradient(GradientLease& lease) const {
  const auto view = lease[options_.model.tied_embeddings ? kEmbedding : kLmHead];
  return {view.data, view.dtype};
}

}  // namespace train_gpt
