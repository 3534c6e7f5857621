#include "progress.hpp"

#include <fmt/format.h>

#include "strata/bytes.hpp"

namespace train_gpt {
namespace {

using strata::Tier;

std::string usage_text(const strata::Session& session) {
  std::string text;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const strata::TierUsage usage = session.usage(tier);
    if (usage.budget == strata::Bytes{}) continue;
    text += fmt::format("  {} {} of {}", name_of(tier), format_bytes(usage.in_use),
                        format_bytes(usage.budget));
  }
  return text;
}

}  // namespace

void Progress::show_step(const StepRecord& record, std::uint64_t step, std::uint64_t steps,
                         std::uint64_t tokens_per_step, const strata::Session& session) {
  std::string line =
      fmt::format("step {:>{}}/{}  loss {:.4f}  norm {:.3g}{}{}  lr {:.2e}  {:.0f} tokens/s{}",
                  step, fmt::formatted_size("{}", steps), steps, record.loss, record.grad_norm,
                  record.skipped ? " skipped" : "",
                  record.loss_scale == 1 ? "" : fmt::format("  scale {:g}", record.loss_scale),
                  record.learning_rate, static_cast<double>(tokens_per_step) / record.seconds,
                  usage_text(session));
  if (!redraws_) {
    output_.write(line + "\n");
    return;
  }
  constexpr const char* kClearToEnd = "\x1b[K";
  if (line.size() >= Output::width()) line.resize(Output::width() - 1);
  output_.write("\r" + line + kClearToEnd);
  line_is_open_ = true;
}

void Progress::show_eval(const EvalRecord& record) {
  say(fmt::format("step {}  eval loss {:.4f}", record.step, record.loss));
}

void Progress::say(const std::string& text) {
  finish();
  output_.write(text + "\n");
}

void Progress::finish() {
  if (line_is_open_) output_.write("\n");
  line_is_open_ = false;
}

}  // namespace train_gpt
