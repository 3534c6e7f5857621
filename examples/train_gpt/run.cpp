#include "run.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "export.hpp"
#include "interrupt.hpp"
#include "kernels.hpp"
#include "progress.hpp"
#include "summary.hpp"
#include "trainer.hpp"

namespace train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TrainerOptions trainer_options(const Options& options) {
  return {.model = options.model,
          .batch = options.batch,
          .accumulation = options.accumulation,
          .vertical = options.vertical,
          .eval_batches = options.eval_batches,
          .seed = options.seed};
}

ExportOptions export_options(const Options& options, const strata::Config& config) {
  return {.directory = options.export_directory,
          .config = {options.model, options.max_positions},
          .dtype = options.export_dtype.value_or(config.precision.param),
          .most_file_bytes = options.export_file_bytes};
}

// The first rank's warnings, each of them once, and only of a session that opened: when it did
// not, the error is what matters.
class Warnings {
 public:
  void add(std::string_view message) {
    const std::scoped_lock lock(mutex_);
    if (!told_.emplace(message).second) return;
    if (opened_) print(message);
  }

  void session_opened() {
    const std::scoped_lock lock(mutex_);
    opened_ = true;
    for (const std::string& message : told_) print(message);
  }

 private:
  static void print(std::string_view message) {
    fmt::print(stderr, "train_gpt: warning: {}\n", message);
  }

  std::mutex mutex_;
  // Guarded by mutex_:
  std::set<std::string, std::less<>> told_;
  bool opened_ = false;
};

// What all ranks know after they have told each other.
struct Agreed {
  double loss_sum = 0;  // added in rank order, so that all ranks have the same bits
  bool stop = false;
};

Agreed agree(strata::Communicator& communicator, double loss_sum) {
  struct Record {
    double loss_sum;
    std::uint64_t stop;
  };
  const Record mine{loss_sum, interrupt::requested() ? 1U : 0U};
  const auto bytes = communicator.exchange(std::as_bytes(std::span(&mine, 1)));
  Agreed agreed;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Record)) {
    Record theirs{};
    std::memcpy(&theirs, bytes.data() + at, sizeof(theirs));
    agreed.loss_sum += theirs.loss_sum;
    agreed.stop = agreed.stop || theirs.stop != 0;
  }
  return agreed;
}

class Run {
 public:
  Run(RunInputs& inputs, const TrainerOptions& trainer, strata::Session& session,
      strata::Timeline& timeline, bool is_first, Output& output)
      : options_(inputs.options),
        schedule_(schedule_of(inputs.options, inputs.config)),
        weight_decay_(inputs.config.optimizer.weight_decay),
        session_(session),
        timeline_(timeline),
        pretrained_(inputs.pretrained.get()),
        is_first_(is_first),
        progress_(output, Output::is_terminal()),
        trainer_(session, *inputs.data, trainer) {
    record_.options = options_;
    record_.parameters = session.model().count_elems();
    record_.tokens_per_step =
        options_.tokens_of_micro_batch() * options_.accumulation * session.communicator().size();
  }

  RunRecord train(const OsCounters& os_at_open) {
    if (is_first_) progress_.say(session_.precision_text());
    if (options_.probe) record_.resources.rates = session_.probe();
    initialize_weights();
    const strata::LinkBytes before = session_.bytes_moved();
    const strata::BusySeconds busy_before = session_.busy_seconds();
    const auto begin = Clock::now();
    bool stop = agree(session_.communicator(), 0).stop;
    if (options_.eval_every != 0 && options_.steps == 0) evaluate(0);
    for (std::uint64_t step = 0; step < options_.steps && !stop; ++step) {
      record_timeline(step);
      stop = train_step(step) && step + 1 < options_.steps;
      const bool last = stop || step + 1 == options_.steps;
      if (options_.eval_every != 0 && (last || (step + 1) % options_.eval_every == 0)) {
        evaluate(step + 1);
      }
    }
    session_.synchronize();
    const strata::LinkBytes step_bytes = session_.bytes_moved() - before - eval_bytes_;
    record_.resources.seconds = seconds_since(begin) - eval_seconds_;
    record_.resources.busy = session_.busy_seconds() - busy_before - eval_busy_;
    record_.resources.bytes = step_bytes;
    timeline_.record(false);
    progress_.finish();
    record_.interrupted = stop;
    if (options_.weights_hash) record_.weights_hash = session_.weights_hash();
    record_.storage = session_.storage_facts();
    record_.schedule = session_.schedule_facts();
    record_.ranks = gather_numbers(session_.communicator(),
                                   numbers_of_rank(session_, options_, step_bytes, os_at_open));
    if (!options_.export_directory.empty()) write_export();
    return std::move(record_);
  }

 private:
  // Steps that follow the schedule, with what trails behind the last of them.
  void record_timeline(std::uint64_t step) {
    if (options_.timeline_path.empty() || !is_first_) return;
    const std::uint64_t first = std::min<std::uint64_t>(2, options_.steps - 1);
    if (step == first) timeline_.record(true);
    if (step == first + 3) timeline_.record(false);
  }

  void initialize_weights() {
    if (pretrained_ == nullptr) return trainer_.initialize_weights();
    pretrained_->initialize(session_);
  }

  void write_export() {
    const std::size_t files = export_weights(session_, export_options(options_, session_.config()));
    if (!is_first_) return;
    progress_.say(fmt::format("{} files written to {}", files, options_.export_directory));
  }

  // Returns whether some rank was asked to stop.
  bool train_step(std::uint64_t step) {
    const auto begin = Clock::now();
    const double rate = schedule_.rate(step);
    std::vector<strata::GroupRates> groups(2);
    groups[kDecayGroup] = {rate, weight_decay_};
    groups[kNormGroup] = {rate, 0};
    const Trainer::StepReport report = trainer_.step(step, std::move(groups));
    const Agreed agreed = agree(session_.communicator(), report.loss_sum);
    record_.steps.push_back({.loss = agreed.loss_sum / static_cast<double>(record_.tokens_per_step),
                             .grad_norm = report.result.grad_norm,
                             .learning_rate = rate,
                             .loss_scale = report.result.loss_scale,
                             .skipped = report.result.skipped,
                             .seconds = seconds_since(begin),
                             .compute_seconds = report.compute_seconds,
                             .parts = report.result.seconds});
    if (is_first_) {
      progress_.show_step(record_.steps.back(), step + 1, options_.steps, record_.tokens_per_step,
                          session_);
    }
    return agreed.stop;
  }

  void evaluate(std::uint64_t steps_done) {
    session_.synchronize();  // the update's bytes are those of steps
    const strata::LinkBytes before = session_.bytes_moved();
    const strata::BusySeconds busy_before = session_.busy_seconds();
    const auto begin = Clock::now();
    const double sum = agree(session_.communicator(), trainer_.evaluate()).loss_sum;
    eval_bytes_ += session_.bytes_moved() - before;
    eval_busy_ += session_.busy_seconds() - busy_before;
    eval_seconds_ += seconds_since(begin);
    const auto tokens = static_cast<double>(options_.tokens_of_micro_batch()) *
                        options_.eval_batches * session_.communicator().size();
    record_.evals.push_back({steps_done, sum / tokens});
    if (is_first_) progress_.show_eval(record_.evals.back());
  }

  const Options options_;
  const CosineSchedule schedule_;
  const double weight_decay_;
  strata::Session& session_;
  strata::Timeline& timeline_;
  Pretrained* const pretrained_;  // null: weights are drawn from the seed
  const bool is_first_;
  Progress progress_;
  Trainer trainer_;
  RunRecord record_;
  strata::LinkBytes eval_bytes_;
  strata::BusySeconds eval_busy_;
  double eval_seconds_ = 0;
};

RunRecord train_in_session(RunInputs& inputs, const Job& job, Output& output) {
  const OsCounters os_at_open = read_os_counters();
  auto communicator = job.connect(inputs.config);
  TrainerOptions trainer = trainer_options(inputs.options);
  trainer.copies_to_host = strata::Session::runs_on_gpu(inputs.config, *communicator);
  strata::SessionOptions session_options = Trainer::session_options(trainer);
  const auto warnings = std::make_shared<Warnings>();
  session_options.log = [warnings](strata::LogLevel level, std::string_view message) {
    if (level == strata::LogLevel::warning) warnings->add(message);
  };
  strata::Timeline timeline;
  session_options.timeline = &timeline;
  if (inputs.pretrained != nullptr) {
    for (const std::string& warning : inputs.pretrained->warnings()) warnings->add(warning);
  }
  strata::Session session =
      strata::Session::open(make_model(inputs.options.model), inputs.config,
                            std::move(communicator), std::move(session_options));
  if (job.is_first()) warnings->session_opened();
  try {
    RunRecord record =
        Run(inputs, trainer, session, timeline, job.is_first(), output).train(os_at_open);
    if (job.is_first() && !inputs.options.timeline_path.empty()) {
      timeline.write(inputs.options.timeline_path, session.communicator().rank());
    }
    return record;
  } catch (const std::exception& error) {
    session.communicator().abort(error.what());
    throw;
  }
}

}  // namespace

ExitCode run_training(RunInputs& inputs, const Job& job, Output& output) {
  kernels::set_blas_threads(static_cast<int>(inputs.options.threads));
  const RunRecord record = train_in_session(inputs, job, output);
  const ExitCode code = record.interrupted ? ExitCode::interrupted : ExitCode::ok;
  if (!job.is_first()) return code;
  output.write(summary_text(record));
  if (!inputs.options.summary_json_path.empty()) {
    write_summary_json(record, inputs.options.summary_json_path);
  }
  if (inputs.options.weights_hash) {
    output.write(fmt::format("weights {}\n", record.weights_hash));
  }
  if (output.broken()) {
    throw strata::Error(strata::ErrorCode::io, "the summary could not be written to stdout");
  }
  return code;
}

}  // namespace train_gpt
