// The one exception type of the library. Thrown by synchronous public calls when the environment
// or the caller is at fault; asynchronous results travel as plain numbers and become an Error in
// one place, the wait on the lease that needs them. The message is a single line that says what
// happened, where, and what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "strata/types.hpp"

namespace strata {

enum class ErrorCode : std::uint8_t {
  invalid_argument,  // a call that its contract forbids
  config,            // the configuration file or a value in it
  budget_exceeded,   // a tier's budget cannot hold what was asked for
  io,                // a read, write, flush, open or directory operation failed
  no_space,          // ENOSPC, EDQUOT or EFBIG
  corrupt,           // data that was read is not what was written
  in_use,            // another session holds the directory
  not_supported,     // this build or machine lacks what was asked for
  rank_lost,         // a peer did not answer within the timeout
  diverged,          // ranks made different calls
  numerics,          // non-finite gradients under `nonfinite: abort`
  closed,            // the session is closed or failed before
  device,            // the device reported an error
};

std::string_view name_of(ErrorCode code);

// What an error is about, as far as it is known.
struct ErrorContext {
  int errnum = 0;  // errno of the failing call, 0 when there is none
  std::string path = {};
  std::optional<std::uint64_t> offset_bytes = {};
  std::optional<Bytes> size = {};
  std::string unit = {};
  std::optional<Rank> rank = {};
};

class Error : public std::runtime_error {
 public:
  // what() is "<message>[: <errno text>][ (path ..., offset ..., unit ..., rank ...)]".
  Error(ErrorCode code, std::string_view message, ErrorContext context = {});

  // The same error with "; <sentence>" behind its message.
  Error with(std::string_view sentence) const;

  ErrorCode code() const noexcept { return code_; }
  const ErrorContext& context() const noexcept { return context_; }

 private:
  struct Composed {};
  Error(Composed, ErrorCode code, const std::string& text, ErrorContext context);

  ErrorCode code_;
  ErrorContext context_;
};

// no_space for ENOSPC, EDQUOT and EFBIG, otherwise io.
ErrorCode io_error_code(int errnum);

}  // namespace strata
