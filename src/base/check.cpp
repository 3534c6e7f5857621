#include "base/check.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace strata {

void assertion_failed(const char* expression, const char* file, int line,
                      std::string_view message) {
  // One write, so that the lines of several threads and ranks do not mix.
  std::string text = "strata: assertion failed: ";
  text.append(expression).append(" at ").append(file).append(":").append(std::to_string(line));
  text.append(": ").append(message).append("\n");
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  std::abort();
}

}  // namespace strata
