#include "strata/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <vector>

namespace strata {

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::config: return "config";
    case ErrorCode::budget_exceeded: return "budget_exceeded";
    case ErrorCode::io: return "io";
    case ErrorCode::no_space: return "no_space";
    case ErrorCode::corrupt: return "corrupt";
    case ErrorCode::in_use: return "in_use";
    case ErrorCode::not_supported: return "not_supported";
    case ErrorCode::rank_lost: return "rank_lost";
    case ErrorCode::diverged: return "diverged";
    case ErrorCode::numerics: return "numerics";
    case ErrorCode::closed: return "closed";
    case ErrorCode::device: return "device";
  }
  return "unknown";
}

namespace {

std::string compose(std::string_view message, const ErrorContext& context) {
  std::string text(message);
  if (context.errnum != 0) {
    text += ": " + std::generic_category().message(context.errnum);
  }
  std::vector<std::string> facts;
  if (!context.path.empty()) facts.push_back(fmt::format("path {}", context.path));
  if (context.offset_bytes) facts.push_back(fmt::format("offset {}", *context.offset_bytes));
  if (context.size) facts.push_back(fmt::format("{} bytes", context.size->value));
  if (!context.unit.empty()) facts.push_back(fmt::format("unit {}", context.unit));
  if (context.rank) facts.push_back(fmt::format("rank {}", context.rank->value));
  if (!facts.empty()) text += fmt::format(" ({})", fmt::join(facts, ", "));
  return text;
}

}  // namespace

Error::Error(ErrorCode code, std::string_view message, ErrorContext context)
    : std::runtime_error(compose(message, context)), code_(code), context_(std::move(context)) {}

Error::Error(Composed, ErrorCode code, const std::string& text, ErrorContext context)
    : std::runtime_error(text), code_(code), context_(std::move(context)) {}

Error Error::with(std::string_view sentence) const {
  return Error(Composed{}, code_, fmt::format("{}; {}", what(), sentence), context_);
}

ErrorCode io_error_code(int errnum) {
  return errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG ? ErrorCode::no_space
                                                                 : ErrorCode::io;
}

}  // namespace strata
