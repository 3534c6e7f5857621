// How a run ends: the exit codes of docs/train_gpt.md and the one line that says why. Values; any
// thread.
#pragma once

#include <exception>
#include <string>

#include "strata/error.hpp"

namespace train_gpt {

enum class ExitCode : int {
  ok = 0,
  unexpected = 1,
  usage = 2,   // command line, configuration, model or data
  budget = 3,  // a budget cannot hold the run
  io = 4,      // NVMe directory, reads and writes, stdout
  ranks = 5,   // ranks lost or diverged
  interrupted = 130,
};

ExitCode exit_code_of(strata::ErrorCode code);

struct Outcome {
  ExitCode code = ExitCode::ok;
  std::string message = {};  // empty when there is nothing to say
  // Only repeats that another rank gave up or is gone; whoever knows the cause speaks first.
  bool secondary = false;
};

// The outcome that stands for an exception. Its message is one line.
Outcome outcome_of(const std::exception& error);

// Runs `body`; whatever it throws becomes the outcome.
template <class Body>
Outcome attempt(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return outcome_of(error);
  }
}

// Runs `body`; what goes wrong in it is the data's fault, not the NVMe tier's.
template <class Body>
auto blaming_data(Body&& body) {
  try {
    return body();
  } catch (const strata::Error& error) {
    throw strata::Error(strata::ErrorCode::config, error.what());
  }
}

}  // namespace train_gpt
