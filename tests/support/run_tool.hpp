// The strata tool inside a test's own process.
#pragma once

#include <string>
#include <vector>

namespace strata::test {

struct ToolOutcome {
  int code = 0;
  std::string out;
  std::string err;
};

// `arguments`: what stands behind `strata` on the command line.
ToolOutcome run_tool(std::vector<std::string> arguments);

}  // namespace strata::test
