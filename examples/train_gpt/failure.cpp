#include "failure.hpp"

#include <algorithm>
#include <new>

namespace train_gpt {
namespace {

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

}  // namespace

ExitCode exit_code_of(strata::ErrorCode code) {
  using strata::ErrorCode;
  switch (code) {
    case ErrorCode::config: return ExitCode::usage;
    case ErrorCode::budget_exceeded: return ExitCode::budget;
    // The only thing of a run that a machine may lack is a usable NVMe directory.
    case ErrorCode::not_supported:
    case ErrorCode::io:
    case ErrorCode::no_space:
    case ErrorCode::corrupt:
    case ErrorCode::in_use: return ExitCode::io;
    case ErrorCode::rank_lost:
    case ErrorCode::diverged: return ExitCode::ranks;
    case ErrorCode::invalid_argument:
    case ErrorCode::numerics:
    case ErrorCode::closed:
    case ErrorCode::device: return ExitCode::unexpected;
  }
  return ExitCode::unexpected;
}

Outcome outcome_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const strata::Error*>(&error)) {
    return {exit_code_of(known->code()), one_line(known->what()),
            known->code() == strata::ErrorCode::rank_lost};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ExitCode::unexpected, "out of memory", false};
  }
  return {ExitCode::unexpected, one_line(error.what()), false};
}

}  // namespace train_gpt
