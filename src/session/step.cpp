// The program's calls inside a step, and the verdict that ends it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/check.hpp"
#include "base/rng.hpp"
#include "session/agreement.hpp"
#include "session/guard.hpp"
#include "session/session_impl.hpp"

namespace strata {
namespace {

constexpr double kSecond = 1e9;
// That of optimizer.beta1 and optimizer.beta2.
constexpr double kLargestBeta = 0.999999;

// Adds the time between construction and destruction to `seconds`, and enters it as `label`.
class Stopwatch {
 public:
  Stopwatch(const TimelineMarks& marks, double& seconds, std::string label)
      : marks_(marks), seconds_(seconds), label_(std::move(label)), begin_ns_(marks.now_ns()) {}
  ~Stopwatch() {
    const std::int64_t end_ns = marks_.now_ns();
    seconds_ += static_cast<double>(end_ns - begin_ns_) / kSecond;
    if (!label_.empty()) marks_.add(TimelineRow::program, label_, begin_ns_, end_ns);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const TimelineMarks& marks_;
  double& seconds_;
  const std::string label_;
  const std::int64_t begin_ns_;
};

std::uint64_t hash_of(const StepOptions& options) {
  std::uint64_t hash = std::hash<std::string>{}(options.pattern);
  hash = rng::at(hash, options.micro_batches);
  hash = rng::at(hash, std::bit_cast<std::uint64_t>(options.gradient_scale));
  for (const GroupRates& rates : options.groups) {
    hash = rng::at(hash, std::bit_cast<std::uint64_t>(rates.learning_rate));
    hash = rng::at(hash, std::bit_cast<std::uint64_t>(rates.weight_decay));
    hash = rng::at(hash, std::bit_cast<std::uint64_t>(rates.beta1.value_or(-1)));
    hash = rng::at(hash, std::bit_cast<std::uint64_t>(rates.beta2.value_or(-1)));
  }
  return hash;
}

}  // namespace

void SessionImpl::fail(const Error& error) noexcept {
  {
    const std::scoped_lock lock(failure_mutex_);
    if (failure_) return;
    failure_ = error;
  }
  communicator_->abort(error.what());
}

bool SessionImpl::has_failed() {
  const std::scoped_lock lock(failure_mutex_);
  return failure_.has_value();
}

Error SessionImpl::first_failure() {
  const std::scoped_lock lock(failure_mutex_);
  return failure_.value();
}

std::string SessionImpl::state_of_states(ErrorCode error) const {
  if (engine_ && (engine_->updating() || updates_began())) {
    return fmt::format(
        "step {} was being applied, so that no step is whole: go back to a checkpoint",
        step_being_applied_);
  }
  if (std::ranges::find(initialized_, false) != initialized_.end()) {
    return "no step is whole: the states were being set";
  }
  const std::string step = completed_steps_ == 0 ? "the initial states are"
                                                 : fmt::format("step {} is", completed_steps_);
  if (error == ErrorCode::corrupt) {
    return step + " lost in part, so that no step is whole: go back to a checkpoint";
  }
  return step + " whole";
}

void SessionImpl::require_step(bool active, std::string_view call) const {
  if (step_.active == active) return;
  throw Error(ErrorCode::invalid_argument,
              active ? fmt::format("{}() outside a step: call begin_step() first", call)
                     : fmt::format("{}() inside a step: end the step first", call));
}

void SessionImpl::check_unit(UnitId unit) const {
  if (unit.value < model_.units().size()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unit {} of a model with {} units", unit.value, model_.units().size()));
}

void SessionImpl::agree(ProgramCall call, bool held) {
  const CallToAgree mine{
      .call = call, .sequence = step_.calls, .detail = held ? 1U : 0U, .schedule = 0};
  agree_on_call(*communicator_, mine, step_.options.pattern,
                [&](UnitId unit) { return model_.unit(unit).name; });
}

bool SessionImpl::holds(UnitId unit) const { return std::ranges::find(held_, unit) != held_.end(); }

void SessionImpl::make_call(ProgramCall call) {
  note_releases();
  const bool held = call.kind == CallKind::gather && holds(call.unit);
  const bool left = patterns_.record(call, held);
  // Those that follow a schedule meet at the step's end.
  if (!patterns_.follows() || call.kind == CallKind::end_step) agree(call, held);
  ++step_.calls;
  if (left) {
    const bool claims = call.kind == CallKind::gather && !held;
    engine_->drop_look_ahead(claims ? std::optional(call.unit) : std::nullopt);
  }
}

void SessionImpl::run_ahead() {
  if (const LookAhead next = patterns_.look_ahead(); !next.empty()) engine_->look_ahead(next);
}

void SessionImpl::note_releases() {
  const std::scoped_lock lock(leases_mutex_);
  for (const UnitId unit : ended_leases_) {
    held_.erase(std::ranges::find(held_, unit));
    if (step_.active) patterns_.record_release(unit);
  }
  ended_leases_.clear();
}

void SessionImpl::spoil_pattern() {
  patterns_.spoil();
  engine_->drop_look_ahead();
}

void SessionImpl::finish_update() {
  guarded([&] { engine_->finish_update(); });
}

std::uint32_t SessionImpl::declared_reductions(UnitId unit) const {
  return step_.options.micro_batches * model_.unit(unit).options.reduces_per_micro_batch;
}

void SessionImpl::check_step_options(const StepOptions& options) const {
  if (options.micro_batches == 0 || options.micro_batches > config_.engine.max_micro_batches) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("begin_step with micro_batches = {}: engine.max_micro_batches allows 1 "
                            "to {}",
                            options.micro_batches, config_.engine.max_micro_batches));
  }
  if (!std::isfinite(options.gradient_scale)) {
    throw Error(ErrorCode::invalid_argument, "begin_step with a gradient_scale that is not finite");
  }
  if (options.groups.empty()) return;
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const GroupRates& rates = options.groups[g];
    const auto is_rate = [](double value) { return std::isfinite(value) && value >= 0; };
    const auto is_beta = [](double value) { return value >= 0 && value <= kLargestBeta; };
    if (!is_rate(rates.learning_rate) || !is_rate(rates.weight_decay)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("begin_step with a rate of {} and a decay of {} for group {}: both "
                              "must be finite and not negative",
                              rates.learning_rate, rates.weight_decay, g));
    }
    if (is_beta(rates.beta1.value_or(0)) && is_beta(rates.beta2.value_or(0))) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("begin_step with betas of {} and {} for group {}: they must be from 0 "
                            "to {}",
                            rates.beta1.value_or(0), rates.beta2.value_or(0), g, kLargestBeta));
  }
  for (const UnitSpec& unit : model_.units()) {
    for (const TensorSpec& tensor : unit.tensors) {
      if (tensor.group < options.groups.size()) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor {} is in group {} but begin_step got rates for {} groups",
                              tensor.name, tensor.group, options.groups.size()),
                  {.unit = unit.name});
    }
  }
}

// Follows the pattern's schedule when every rank has the same.
void SessionImpl::begin_pattern() {
  note_releases();
  std::ranges::sort(held_, {}, &UnitId::value);
  const std::uint64_t schedule =
      patterns_.begin(step_.options.pattern, step_.options.micro_batches, held_);
  const ProgramCall call{CallKind::begin_step, {}};
  const CallToAgree mine{.call = call,
                         .sequence = 0,
                         .detail = hash_of(step_.options),
                         .schedule = config_.engine.look_ahead == 0 ? 0 : schedule};
  const bool agreed = agree_on_call(*communicator_, mine, step_.options.pattern, {});
  patterns_.follow(agreed && mine.schedule != 0);
  patterns_.record(call);
  step_.calls = 1;
  run_ahead();
}

Step SessionImpl::begin_step(StepOptions options) {
  guarded([&] {
    require_step(false, "begin_step");
    if (live_activations_ > 0) {
      throw Error(ErrorCode::invalid_argument,
                  "begin_step while activation leases of an earlier step are held: end them first");
    }
    check_step_options(options);
    if (engine_->update_failed()) engine_->finish_update();
    for (std::uint32_t u = 0; u < initialized_.size(); ++u) {
      if (initialized_[u]) continue;
      throw Error(ErrorCode::invalid_argument,
                  "begin_step before initialize() of every unit: this one has no states",
                  {.unit = model_.unit(UnitId{u}).name});
    }
    step_.active = true;
    step_.options = std::move(options);
    step_.reductions.assign(model_.units().size(), 0);
    step_.reduce_order.clear();
    step_.present.assign(tensor_updates_.size(), 0);
    step_.updated.assign(model_.units().size(), 0);
    step_.seconds = {};
    step_.begin_ns = clock_.now_ns();
    step_.bytes_before = bytes_moved();
    if (!geometry_.activations.homes.empty()) engine_->forget_activations();
    begin_pattern();
  });
  return Step(shared_from_this());
}

GatherLease SessionImpl::gather(UnitId unit, StreamId stream) {
  return guarded([&] {
    require_step(true, "gather");
    check_unit(unit);
    if (config_.optimizer.in_backward &&
        step_.reductions[unit.value] == declared_reductions(unit)) {
      throw Error(ErrorCode::invalid_argument,
                  "gather() after the last reduce() of the step, when the weights may be those of "
                  "the next (optimizer.in_backward): gather before, or end the step",
                  {.unit = model_.unit(unit).name});
    }
    const std::string& name = model_.unit(unit).name;
    const Stopwatch watch(*marks_, step_.seconds.gather_wait, marks_->label("gather", name));
    make_call({CallKind::gather, unit});
    const bool shares = patterns_.follows() ? patterns_.shares() : holds(unit);
    Engine::Gathered gathered;
    try {
      gathered = engine_->gather(unit, shares, patterns_.look_ahead());
    } catch (...) {
      spoil_pattern();
      throw;
    }
    held_.push_back(unit);
    device_->wait(stream, gathered.ready);
    GatherLease lease;
    lease.session_ = shared_from_this();
    lease.unit_ = unit;
    lease.gathering_ = gathered.id.value;
    lease.buffer_ = gathered.buffer;
    lease.streams_[0] = stream;
    lease.stream_count_ = 1;
    lease.entry_ = marks_->begin(stream);
    return lease;
  });
}

void SessionImpl::end_gather(UnitId unit, GatheringId gathering, std::span<const StreamId> streams,
                             const TimelineMarks::Mark& mark) noexcept {
  static_assert(GatherLease::kMostStreams == LastUses::kMostStreams);
  marks_->end(mark, streams.front(), TimelineRow::compute, model_.unit(unit).name);
  LastUses last_uses;
  for (const StreamId stream : streams) {
    last_uses.events[last_uses.count++] = device_->record(stream);
  }
  const std::scoped_lock lock(leases_mutex_);
  engine_->release_gather(gathering, last_uses);
  ended_leases_.push_back(unit);
}

TensorView SessionImpl::tensor_view(UnitId unit, TensorId tensor,
                                    std::span<std::byte> buffer) const {
  const DType dtype = geometry_.table[kParamKind].dtype;
  const auto [found, range] = geometry_.layout.locate(unit, tensor);
  const std::byte* base = buffer.data();
  for (const std::uint32_t s : geometry_.layout.segments_of(unit)) {
    if (s == found) break;
    const Bytes size =
        geometry_.layout.segments[s].shard_elems * geometry_.layout.group_size * size_of(dtype);
    base += round_up(size, kPieceAlign).value;
  }
  return {base + range.begin_elems * size_of(dtype).value, dtype, range.count_elems};
}

GradientLease SessionImpl::gradients(UnitId unit, StreamId stream) {
  return guarded([&] {
    require_step(true, "gradients");
    check_unit(unit);
    if (step_.reductions[unit.value] == declared_reductions(unit)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("all {} declared reductions of this step were made already; declare "
                              "more micro_batches or reduces_per_micro_batch",
                              declared_reductions(unit)),
                  {.unit = model_.unit(unit).name});
    }
    const Stopwatch watch(*marks_, step_.seconds.gradient_wait,
                          marks_->label("gradients", model_.unit(unit).name));
    const auto [wire, buffer] = engine_->acquire_gradients(unit);
    device_->zero(stream, buffer.data(), Bytes{buffer.size()});
    GradientLease lease;
    lease.session_ = shared_from_this();
    lease.unit_ = unit;
    lease.stream_ = stream;
    lease.buffer_ = buffer;
    lease.wire_ = wire;
    return lease;
  });
}

void SessionImpl::end_gradients(StreamId stream) noexcept {
  engine_->drop_gradients(device_->record(stream));
}

GradientView SessionImpl::gradient_view(UnitId unit, TensorId tensor, std::span<std::byte> buffer) {
  // The trainable segment comes first in a unit, so its tensors' places are the buffer's.
  const auto [segment, range] = geometry_.layout.locate(unit, tensor);
  if (!geometry_.layout.segments[segment].trainable) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor {} is frozen and has no gradient",
                            model_.unit(unit).tensors[tensor.value].name),
                {.unit = model_.unit(unit).name});
  }
  step_.present[tensor_index(unit, tensor)] = 1;
  const DType dtype = geometry_.table.lent;
  return {buffer.data() + range.begin_elems * size_of(dtype).value, dtype, range.count_elems};
}

void SessionImpl::reduce(GradientLease lease, StreamId stream) {
  guarded([&] {
    require_step(true, "reduce");
    if (lease.session_.get() != this) {
      throw Error(ErrorCode::invalid_argument, "reduce() of an empty or foreign gradient lease");
    }
    const UnitId unit = lease.unit_;
    if (loss_scale_.scales() && !asked_loss_scale_) {
      throw Error(ErrorCode::invalid_argument,
                  "this session scales losses (loss_scale.kind): multiply the loss by "
                  "loss_scale() before each step's first reduce()",
                  {.unit = model_.unit(unit).name});
    }
    make_call({CallKind::reduce, unit});
    run_ahead();
    const std::uint32_t made = step_.reductions[unit.value]++;
    std::erase(step_.reduce_order, unit);
    step_.reduce_order.push_back(unit);
    lease.session_.reset();
    const DType wire = geometry_.table.wire;
    if (geometry_.table.lent != wire) {
      device_->element_op(stream,
                          ConvertOp{.to = lease.wire_.data(),
                                    .to_dtype = wire,
                                    .from = lease.buffer_.data(),
                                    .from_dtype = geometry_.table.lent,
                                    .count_elems = lease.wire_.size() / size_of(wire).value});
    }
    const bool last = made + 1 == declared_reductions(unit);
    const bool early = last && updates_early(unit);
    if (early) {
      // The update of the step before reads the coefficients.
      if (engine_->updating()) engine_->finish_update(unit);
      find_coefficients(unit, step_.present, gradient_factor());
      step_.updated[unit.value] = 1;
      step_being_applied_ = completed_steps_ + 1;
    }
    engine_->reduce(unit, device_->record(stream),
                    {.first = made == 0, .last = last, .update = early ? &find_runs_ : nullptr});
  });
}

// Other ranks may have gradients for tensors that this one has not marked present.
bool SessionImpl::updates_early(UnitId unit) const {
  if (!config_.optimizer.in_backward) return false;
  const auto& tensors = model_.unit(unit).tensors;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].trainable && step_.present[tensor_index(unit, TensorId{t})] == 0) return false;
  }
  return true;
}

bool SessionImpl::updates_began() const {
  return std::ranges::find(step_.updated, 1) != step_.updated.end();
}

void SessionImpl::issue(StreamId stream, const IssueFunction& enqueue) {
  guarded([&] {
    require_step(true, "issue");
    if (!enqueue) throw Error(ErrorCode::invalid_argument, "issue() of an empty function");
    make_call({CallKind::issue, {}});
    run_ahead();
    try {
      device_->wait(stream, engine_->issue(device_->record(stream), enqueue));
    } catch (const Error& error) {
      fail(error);
      throw;
    } catch (const std::exception& error) {
      // The peers have enqueued it and wait for this rank.
      fail(Error(ErrorCode::closed, fmt::format("a collective of issue(): {}", error.what())));
      throw;
    }
  });
}

void SessionImpl::abandon_step() noexcept {
  if (step_.active && updates_began()) {
    fail(Error(ErrorCode::closed,
               fmt::format("step {} was abandoned after some of its updates had begun "
                           "(optimizer.in_backward), so that no step is whole: go back to a "
                           "checkpoint",
                           step_being_applied_)));
  }
  step_.active = false;
  patterns_.abandon();
  engine_->drop_look_ahead();
}

SessionImpl::Verdict SessionImpl::agree_on_verdict(const LocalVerdict& local) {
  struct Header {
    double sum_of_squares;
    std::uint64_t nonfinite;
  };
  const Header mine{local.sum_of_squares, local.nonfinite ? 1U : 0U};
  std::vector<std::byte> record(sizeof(Header) + step_.present.size());
  std::memcpy(record.data(), &mine, sizeof(Header));
  std::memcpy(record.data() + sizeof(Header), step_.present.data(), step_.present.size());
  const std::vector<std::byte> all =
      communicator_->size() == 1 ? record : communicator_->exchange(record);
  Verdict verdict{.present = std::vector<std::uint8_t>(step_.present.size())};
  for (std::uint32_t r = 0; r < communicator_->size(); ++r) {
    const std::byte* theirs = all.data() + r * record.size();
    Header header{};
    std::memcpy(&header, theirs, sizeof(Header));
    verdict.sum_of_squares += header.sum_of_squares;
    verdict.nonfinite |= header.nonfinite != 0;
    for (std::size_t i = 0; i < verdict.present.size(); ++i) {
      verdict.present[i] |= static_cast<std::uint8_t>(theirs[sizeof(Header) + i]);
    }
  }
  return verdict;
}

void SessionImpl::find_coefficients(UnitId unit, const std::vector<std::uint8_t>& present,
                                    double factor) {
  const Config::Optimizer& optimizer = config_.optimizer;
  const auto& tensors = model_.unit(unit).tensors;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t index = tensor_index(unit, TensorId{t});
    coefficients_[index].reset();
    if (present[index] == 0) continue;
    const GroupRates rates = step_.options.groups.empty()
                                 ? GroupRates{optimizer.learning_rate, optimizer.weight_decay}
                                 : step_.options.groups[tensors[t].group];
    const Hyperparameters hyperparameters{.learning_rate = rates.learning_rate,
                                          .weight_decay = rates.weight_decay,
                                          .beta1 = rates.beta1.value_or(optimizer.beta1),
                                          .beta2 = rates.beta2.value_or(optimizer.beta2),
                                          .epsilon = optimizer.epsilon,
                                          .momentum = optimizer.momentum};
    coefficients_[index] =
        coefficients_of(geometry_.table.rule, hyperparameters, ++tensor_updates_[index], factor);
  }
}

void SessionImpl::start_update(const Verdict& verdict, double factor) {
  const auto waits_for_verdict = [&](UnitId unit) { return step_.updated[unit.value] == 0; };
  const bool some_wait = std::ranges::any_of(step_.reduce_order, waits_for_verdict);
  if (some_wait) engine_->finish_update();  // it uses what is set here
  update_order_.clear();
  // The next forward needs first what backward reduced last.
  std::copy_if(step_.reduce_order.rbegin(), step_.reduce_order.rend(),
               std::back_inserter(update_order_), waits_for_verdict);
  for (const UnitId unit : update_order_) {
    find_coefficients(unit, verdict.present, factor);
  }
  step_being_applied_ = ++completed_steps_;
  std::ranges::fill(step_.updated, std::uint8_t{0});
  if (some_wait) engine_->start_update(update_order_, find_runs_);
  if (config_.engine.look_ahead == 0) engine_->finish_update();
}

void SessionImpl::follow_loss_scale(bool skipped) {
  const double before = loss_scale_.value();
  if (!skipped) {
    loss_scale_.succeeded();
  } else if (!loss_scale_.overflowed()) {
    throw Error(ErrorCode::numerics,
                fmt::format("a gradient of step {} is not finite although the loss scale is at its "
                            "minimum of {}; the weights are those of the step before",
                            completed_steps_ + 1, before));
  }
  if (log_ && loss_scale_.value() != before) {
    log_(LogLevel::info, fmt::format("loss scale {} from step {} on", loss_scale_.value(),
                                     completed_steps_ + (skipped ? 1 : 2)));
  }
}

StepResult SessionImpl::end_step() {
  return guarded([&] {
    require_step(true, "end");
    StepResult result;
    result.loss_scale = loss_scale_.value();
    make_call({CallKind::end_step, {}});
    step_.active = false;
    asked_loss_scale_ = false;
    LocalVerdict local;
    {
      const Stopwatch watch(*marks_, step_.seconds.drain, marks_->label("end: drain", ""));
      std::vector<UnitId> incomplete;
      for (const UnitId unit : step_.reduce_order) {
        if (step_.reductions[unit.value] < declared_reductions(unit)) incomplete.push_back(unit);
      }
      local = engine_->finish_gradients(step_.reduce_order, incomplete);
    }
    if (!step_.reduce_order.empty()) {
      Verdict verdict;
      {
        const Stopwatch watch(*marks_, step_.seconds.verdict, marks_->label("end: verdict", ""));
        verdict = agree_on_verdict(local);
      }
      const double scale = gradient_factor();
      result.grad_norm = std::sqrt(verdict.sum_of_squares) * std::abs(scale);
      result.skipped = verdict.nonfinite || !std::isfinite(result.grad_norm);
      // A dynamic scale probes for the largest that works: overflows are how it finds it.
      if (result.skipped && config_.optimizer.nonfinite == Config::Nonfinite::abort &&
          !loss_scale_.dynamic()) {
        throw Error(ErrorCode::numerics,
                    fmt::format("a gradient of step {} is not finite (optimizer.nonfinite is "
                                "\"abort\"); {}",
                                completed_steps_ + 1,
                                config_.optimizer.in_backward
                                    ? "some weights are those of this step and some of the one "
                                      "before: go back to a checkpoint"
                                    : "the weights are those of the step before"));
      }
      follow_loss_scale(result.skipped);
      if (!result.skipped) {
        const Stopwatch watch(*marks_, step_.seconds.update, marks_->label("end: update", ""));
        result.clip_factor = clip_factor(result.grad_norm, config_.optimizer.clip_norm);
        start_update(verdict, scale * result.clip_factor);
        result.updated = true;
      }
    }
    result.step = completed_steps_;
    result.pattern_repeated = patterns_.end();
    result.seconds = step_.seconds;
    result.seconds.total = static_cast<double>(clock_.now_ns() - step_.begin_ns) / kSecond;
    result.bytes = bytes_moved() - step_.bytes_before;
    return result;
  });
}

}  // namespace strata
