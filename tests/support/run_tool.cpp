#include "support/run_tool.hpp"

#include <cstdio>
#include <cstdlib>

#include "tool.hpp"

namespace strata::test {

ToolOutcome run_tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "strata");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  char* out_text = nullptr;
  char* err_text = nullptr;
  std::size_t out_size = 0;
  std::size_t err_size = 0;
  std::FILE* out = ::open_memstream(&out_text, &out_size);
  std::FILE* err = ::open_memstream(&err_text, &err_size);
  ToolOutcome outcome;
  outcome.code = tool::run(static_cast<int>(argv.size()), argv.data(), out, err);
  std::fclose(out);
  std::fclose(err);
  outcome.out.assign(out_text, out_size);
  outcome.err.assign(err_text, err_size);
  std::free(out_text);
  std::free(err_text);
  return outcome;
}

}  // namespace strata::test
