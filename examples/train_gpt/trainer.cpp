#include "trainer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
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

constexpr Bytes kAlign{256};  // what scratch is lent in, and more than a Workspace asks for
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

Bytes norm_bytes(const TrainerOptions& options) {
  return round_up(Bytes{options.model.hidden * sizeof(float)}, kAlign);
}

Bytes math_scratch_bytes(const TrainerOptions& options) {
  const std::uint64_t batches = options.kept_micro_batches();
  const std::uint64_t inputs = options.copies_to_host ? options.kept_inputs() : 0;
  return aligned_workspace_bytes(options) + aligned_activation_bytes(options) * (inputs + batches) +
         (token_bytes(options) + norm_bytes(options)) * batches + loss_bytes(options);
}

Bytes host_scratch_bytes(const TrainerOptions& options) {
  return 2 * token_bytes(options) + loss_bytes(options);
}

// Copies of the largest unit's weights, or of the head's and the embedding's, and of the largest
// unit's gradients, in the widest type.
struct CopyBytes {
  Bytes weights;
  Bytes gradients;
};

CopyBytes copy_bytes(const TrainerOptions& options) {
  if (!options.copies_to_host) return {};
  std::vector<std::uint64_t> elems;
  for (const strata::UnitSpec& unit : units(options.model)) {
    std::uint64_t sum = 0;
    for (const strata::TensorSpec& tensor : unit.tensors) sum += tensor.count_elems();
    elems.push_back(sum);
  }
  const std::uint64_t largest = *std::max_element(elems.begin(), elems.end());
  const Bytes fp32 = size_of(strata::DType::fp32);
  return {round_up(fp32 * std::max(largest, elems.front() + elems.back()), kAlign),
          round_up(fp32 * largest, kAlign)};
}

Tier math_tier(const TrainerOptions& options) {
  return options.copies_to_host ? Tier::host : Tier::device;
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
  const CopyBytes copies = copy_bytes(options);
  const Bytes math = math_scratch_bytes(options);
  const Bytes host = host_scratch_bytes(options) + copies.weights + copies.gradients;
  strata::SessionOptions announced;
  if (options.copies_to_host) {
    announced.host_scratch = host + math;
  } else {
    announced.device_scratch = math;
    announced.host_scratch = host;
    announced.activations = {.count = options.kept_inputs(),
                             .size = activation_bytes(options.model, options.batch),
                             .live = 2};
  }
  return announced;
}

Trainer::Trainer(strata::Session& session, Dataset& data, const TrainerOptions& options)
    : session_(session),
      data_(data),
      options_(options),
      device_(session.device()),
      stream_(device_.create_stream("compute")),
      head_{options.model.layers + 1},
      math_scratch_(session.scratch(math_tier(options), math_scratch_bytes(options))),
      host_scratch_(session.scratch(Tier::host, host_scratch_bytes(options))),
      copies_(lay_out_copies()) {
  if (!device_.host_addressable() && !options.copies_to_host) {
    throw strata::Error(strata::ErrorCode::invalid_argument,
                        "a trainer on a GPU needs TrainerOptions::copies_to_host");
  }
  lay_out_math(math_scratch_.memory());
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

void Trainer::lay_out_math(std::span<std::byte> memory) {
  const std::uint64_t tokens = options_.tokens_of_micro_batch();
  const Bytes workspace = aligned_workspace_bytes(options_);
  workspace_memory_ = {take(memory, workspace), workspace.value};
  const auto take_floats = [&](Bytes size) { return reinterpret_cast<float*>(take(memory, size)); };
  const std::uint32_t batches = options_.kept_micro_batches();
  for (std::uint32_t i = 0; options_.copies_to_host && i < options_.kept_inputs(); ++i) {
    inputs_of_blocks_.push_back(take_floats(aligned_activation_bytes(options_)));
  }
  for (std::uint32_t m = 0; m < batches; ++m) {
    outputs_.push_back(take_floats(aligned_activation_bytes(options_)));
    norm_grads_.push_back(take_floats(norm_bytes(options_)));
    auto* ids = reinterpret_cast<std::uint32_t*>(take(memory, token_bytes(options_)));
    tokens_.push_back({{ids, tokens}, {ids + tokens, tokens}});
  }
  losses_ = {reinterpret_cast<double*>(take(memory, loss_bytes(options_))), loss_slots(options_)};
}

void Trainer::lay_out_host(std::span<std::byte> memory) {
  for (HostBatch& batch : host_batches_) {
    batch.tokens = {reinterpret_cast<std::uint32_t*>(take(memory, token_bytes(options_))),
                    2 * options_.tokens_of_micro_batch()};
  }
  host_losses_ = {reinterpret_cast<double*>(memory.data()), loss_slots(options_)};
}

HostCopies Trainer::lay_out_copies() {
  const CopyBytes sizes = copy_bytes(options_);
  if (!options_.copies_to_host) return HostCopies(device_, stream_, {}, {});
  copies_scratch_ = session_.scratch(Tier::host, sizes.weights + sizes.gradients);
  const std::span<std::byte> memory = copies_scratch_.memory();
  return HostCopies(device_, stream_, memory.first(sizes.weights.value),
                    memory.subspan(sizes.weights.value));
}

void Trainer::move(void* to, const void* from, Bytes size, strata::CopyKind kind) {
  if (!options_.copies_to_host) {
    device_.copy(stream_, to, from, size, kind);
    return;
  }
  reads(from, size);
  writes(to, size);
  launch([to, from, size] { std::memcpy(to, from, size.value); });
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
  // Gradients of the mean fit into fp16, those of the sum are exact for longer in the other types.
  const double mean = 1.0 / static_cast<double>(tokens_of_step);
  const bool of_mean = session_.config().precision.reduce == strata::DType::fp16;
  loss_factor_ = static_cast<float>(session_.loss_scale() * (of_mean ? mean : 1));
  strata::Step step =
      session_.begin_step({.pattern = "train",
                           .micro_batches = options_.vertical ? 1 : options_.accumulation,
                           .gradient_scale = of_mean ? 1 : mean,
                           .groups = std::move(groups)});
  const std::uint32_t rank = session_.communicator().rank().value;
  for (std::uint32_t m = 0; m < options_.accumulation; m += options_.kept_micro_batches()) {
    const Batches batches{.count = options_.kept_micro_batches(), .first_loss = m};
    for (std::uint32_t i = 0; i < batches.count; ++i) {
      upload_batch(Split::train, {index, m + i, rank}, i);
    }
    forward(batches, true);
    head_backward(batches);
    backward(batches);
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
    upload_batch(Split::eval, {0, m, session_.communicator().rank().value}, 0);
    forward({}, false);
    head_loss(m);
  }
  const strata::Event ready = download_losses(options_.eval_batches);
  // Nothing was reduced, so this changes no weight.
  [[maybe_unused]] const strata::StepResult unchanged = step.end();
  return sum_losses(options_.eval_batches, ready);
}

void Trainer::upload_batch(Split split, const BatchId& id, std::uint32_t place) {
  HostBatch& batch = host_batches_[next_host_batch_];
  next_host_batch_ ^= 1U;
  if (batch.copied.recorded()) device_.synchronize(batch.copied);
  const std::uint64_t tokens = options_.tokens_of_micro_batch();
  blaming_data([&] {
    data_.read_batch(options_.seed, split, id, batch.tokens.first(tokens),
                     batch.tokens.last(tokens));
  });
  move(tokens_[place].inputs.data(), batch.tokens.data(), Bytes{batch.tokens.size_bytes()},
       strata::CopyKind::host_to_device);
  batch.copied = device_.record(stream_);
}

Trainer::Input Trainer::new_input(std::uint32_t layer, std::uint32_t batch) {
  const std::uint32_t index = layer * options_.kept_micro_batches() + batch;
  if (options_.copies_to_host) return {.lease = {}, .data = inputs_of_blocks_[index]};
  Input input{.lease = session_.stash(index, stream_)};
  input.data = reinterpret_cast<float*>(input.lease.memory().data());
  return input;
}

Trainer::Input Trainer::stored_input(std::uint32_t layer, std::uint32_t batch) {
  const std::uint32_t index = layer * options_.kept_micro_batches() + batch;
  if (options_.copies_to_host) return {.lease = {}, .data = inputs_of_blocks_[index]};
  Input input{.lease = session_.unstash(index, stream_)};
  input.data = reinterpret_cast<float*>(input.lease.memory().data());
  return input;
}

void Trainer::forward(const Batches& batches, bool keeps) {
  // With one batch the output of a block is the next one's input while it is still held.
  std::vector<Input> inputs(batches.count);
  embed_forward(batches, inputs);
  for (std::uint32_t layer = 0; layer < options_.model.layers; ++layer) {
    block_forward(layer, batches, keeps, inputs);
  }
}

void Trainer::embed_forward(const Batches& batches, std::vector<Input>& outputs) {
  const GatherLease lease = session_.gather(embed_, stream_);
  copies_.start_unit();
  const WeightView embedding = copies_.of(embedding_view(lease));
  for (std::uint32_t m = 0; m < batches.count; ++m) {
    Input out = new_input(0, m);
    reads_weights(embedding);
    reads(tokens_[m].inputs.data(), Bytes{tokens_[m].inputs.size_bytes()});
    writes(out.data, activation_bytes(options_.model, options_.batch));
    launch([this, embedding, m, to = out.data] {
      train_gpt::embed_forward(embedding, tokens_[m].inputs, to);
    });
    if (batches.count == 1) outputs[m] = std::move(out);
  }
}

void Trainer::block_forward(std::uint32_t layer, const Batches& batches, bool keeps,
                            std::vector<Input>& inputs) {
  const Bytes activation = activation_bytes(options_.model, options_.batch);
  const GatherLease lease = session_.gather(block(layer), stream_);
  const BlockWeights weights = copied(block_weights(options_.model, lease));
  for (std::uint32_t m = 0; m < batches.count; ++m) {
    const bool held = batches.count == 1;
    Input in = held ? std::move(inputs[m]) : stored_input(layer, m);
    const bool last = layer + 1 == options_.model.layers;
    Input out = last ? Input{.lease = {}, .data = outputs_[m]} : new_input(layer + 1, m);
    for (const WeightView& view : listed(weights)) reads_weights(view);
    reads(in.data, activation);
    writes(out.data, activation);
    uses_workspace();
    launch([this, weights, from = in.data, to = out.data] {
      train_gpt::block_forward(weights, from, to, *workspace_);
    });
    if (!keeps) {
      in.lease.discard();
    } else if (!held) {
      in.lease.keep();
    }
    if (held) inputs[m] = std::move(out);
  }
}

void Trainer::head_loss(std::uint32_t slot) {
  const GatherLease head = session_.gather(head_, stream_);
  GatherLease embed;
  if (options_.model.tied_embeddings) embed = session_.gather(embed_, stream_);
  const HeadWeights weights = copied(head_views(head, embed));
  reads_weights(weights.final_norm);
  reads_weights(weights.output);
  reads(outputs_[0], activation_bytes(options_.model, options_.batch));
  reads(tokens_[0].targets.data(), Bytes{tokens_[0].targets.size_bytes()});
  writes(&losses_[slot], Bytes{sizeof(double)});
  uses_workspace();
  launch([this, weights, slot] {
    losses_[slot] = train_gpt::head_loss(weights, outputs_[0], tokens_[0].targets, *workspace_);
  });
}

// With tied embeddings the output projection's gradient belongs to another unit than the norm's,
// and a session lends one gradient buffer at a time.
void Trainer::head_backward(const Batches& batches) {
  GatherLease head = session_.gather(head_, stream_);
  GatherLease embed;
  if (options_.model.tied_embeddings) embed = session_.gather(embed_, stream_);
  GradientLease lease = session_.gradients(output_unit(), stream_);
  const HeadWeights weights = copied(head_views(head, embed));
  const GradView output = copied(output_gradient(lease), weights.output);
  const Bytes norm_size{options_.model.hidden * sizeof(float)};
  for (std::uint32_t m = 0; m < batches.count; ++m) {
    const std::uint32_t slot = batches.first_loss + m;
    reads_weights(weights.final_norm);
    reads_weights(weights.output);
    updates(outputs_[m], activation_bytes(options_.model, options_.batch));
    reads(tokens_[m].targets.data(), Bytes{tokens_[m].targets.size_bytes()});
    writes(&losses_[slot], Bytes{sizeof(double)});
    writes(norm_grads_[m], norm_size);
    updates_gradient(output, weights.output);
    uses_workspace();
    launch([this, weights, output, m, slot, factor = loss_factor_] {
      losses_[slot] = train_gpt::head_backward(weights, outputs_[m], tokens_[m].targets, factor,
                                               outputs_[m], output, norm_grads_[m], *workspace_);
    });
  }
  head = {};
  embed = {};
  if (options_.model.tied_embeddings) {
    reduce(std::move(lease));
    lease = session_.gradients(head_, stream_);
  }
  const auto norm_view = lease[kFinalNorm];
  const GradView norm = copied({norm_view.data, norm_view.dtype}, weights.final_norm);
  for (std::uint32_t m = 0; m < batches.count; ++m) {
    reads(norm_grads_[m], norm_size);
    updates_gradient(norm, weights.final_norm);
    launch([this, norm, m] { head_norm_gradient(norm, norm_grads_[m], options_.model); });
  }
  reduce(std::move(lease));
}

void Trainer::backward(const Batches& batches) {
  for (std::uint32_t layer = options_.model.layers; layer-- > 0;) block_backward(layer, batches);
  embed_backward(batches);
}

void Trainer::block_backward(std::uint32_t layer, const Batches& batches) {
  const Bytes activation = activation_bytes(options_.model, options_.batch);
  GatherLease gathered = session_.gather(block(layer), stream_);
  GradientLease lease = session_.gradients(block(layer), stream_);
  const BlockWeights weights = copied(block_weights(options_.model, gathered));
  const BlockGrads grads = copied(block_grads(lease), weights);
  for (std::uint32_t m = 0; m < batches.count; ++m) {
    const Input in = stored_input(layer, m);
    for (std::size_t i = 0; i < listed(weights).size(); ++i) {
      reads_weights(listed(weights)[i]);
      updates_gradient(listed(grads)[i], listed(weights)[i]);
    }
    reads(in.data, activation);
    updates(outputs_[m], activation);
    uses_workspace();
    launch([this, weights, grads, from = in.data, d = outputs_[m]] {
      train_gpt::block_backward(weights, from, d, grads, *workspace_);
    });
  }
  gathered = {};
  reduce(std::move(lease));
}

void Trainer::embed_backward(const Batches& batches) {
  GradientLease lease = session_.gradients(embed_, stream_);
  const auto view = lease[kEmbedding];
  const GradView gradient = copies_.of(GradView{view.data, view.dtype}, view.count_elems);
  for (std::uint32_t m = 0; m < batches.count; ++m) {
    reads(tokens_[m].inputs.data(), Bytes{tokens_[m].inputs.size_bytes()});
    reads(outputs_[m], activation_bytes(options_.model, options_.batch));
    updates(gradient.data, size_of(view.dtype) * view.count_elems);
    uses_workspace();
    launch([this, gradient, m] {
      train_gpt::embed_backward(tokens_[m].inputs, outputs_[m], gradient, *workspace_);
    });
  }
  reduce(std::move(lease));
}

strata::Event Trainer::download_losses(std::uint32_t count) {
  move(host_losses_.data(), losses_.data(), Bytes{count * sizeof(double)},
       strata::CopyKind::device_to_host);
  return device_.record(stream_);
}

double Trainer::sum_losses(std::uint32_t count, strata::Event ready) const {
  device_.synchronize(ready);
  // A collective that was cut short leaves garbage, and no later call of the session looks.
  if (const auto failure = session_.communicator().failure()) throw strata::Error(*failure);
  double sum = 0;
  for (std::uint32_t m = 0; m < count; ++m) sum += host_losses_[m];
  return sum;
}

BlockWeights Trainer::copied(const BlockWeights& w) {
  copies_.start_unit();
  // A braced list is evaluated from left to right.
  return {copies_.of(w.attn_norm), copies_.of(w.wq),   copies_.of(w.wk),
          copies_.of(w.wv),        copies_.of(w.wo),   copies_.of(w.ffn_norm),
          copies_.of(w.w_gate),    copies_.of(w.w_up), copies_.of(w.w_down)};
}

BlockGrads Trainer::copied(const BlockGrads& g, const BlockWeights& w) {
  return {copied(g.attn_norm, w.attn_norm),
          copied(g.wq, w.wq),
          copied(g.wk, w.wk),
          copied(g.wv, w.wv),
          copied(g.wo, w.wo),
          copied(g.ffn_norm, w.ffn_norm),
          copied(g.w_gate, w.w_gate),
          copied(g.w_up, w.w_up),
          copied(g.w_down, w.w_down)};
}

HeadWeights Trainer::copied(const HeadWeights& w) {
  copies_.start_unit();
  return {copies_.of(w.final_norm), copies_.of(w.output)};
}

GradView Trainer::copied(const GradView& gradient, const WeightView& shape) {
  return copies_.of(gradient, shape.rows * shape.cols);
}

void Trainer::reduce(GradientLease lease) {
  copies_.deliver();
  session_.reduce(std::move(lease), stream_);
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
