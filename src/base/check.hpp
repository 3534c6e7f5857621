// STRATA_ASSERT: a broken invariant of ours. On in every build, because going on could corrupt
// weights; prints the expression, the place and a message with values, then aborts. Not for
// mistakes of the user or the environment: those throw strata::Error.
#pragma once

#include <string_view>

namespace strata {

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   std::string_view message);

}  // namespace strata

#define STRATA_ASSERT(condition, message)                                    \
  do {                                                                       \
    if (!(condition)) [[unlikely]] {                                         \
      ::strata::assertion_failed(#condition, __FILE__, __LINE__, (message)); \
    }                                                                        \
  } while (false)
