// The progress line: step, loss, gradient norm, rate, speed and bytes in use per tier. On a
// terminal one line is redrawn; elsewhere every step is a plain line. Thread: one at a time.
#pragma once

#include <cstdint>
#include <string>

#include "output.hpp"
#include "record.hpp"
#include "strata/session.hpp"

namespace train_gpt {

class Progress {
 public:
  Progress(Output& output, bool redraws) : output_(output), redraws_(redraws) {}

  void show_step(const StepRecord& record, std::uint64_t step, std::uint64_t steps,
                 std::uint64_t tokens_per_step, const strata::Session& session);
  void show_eval(const EvalRecord& record);

  // A line of its own, that stays.
  void say(const std::string& text);

  // Ends the line that is being redrawn.
  void finish();

 private:
  Output& output_;
  const bool redraws_;
  bool line_is_open_ = false;
};

}  // namespace train_gpt
