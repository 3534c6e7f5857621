#include "tool.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <string>

#include "bench_io.hpp"
#include "bench_optim.hpp"
#include "bench_step.hpp"
#include "inspect.hpp"
#include "interrupt.hpp"

namespace strata::tool {
namespace {

constexpr int kWrongUse = 2;
constexpr int kInterrupted = 130;  // as shells have it: 128 + SIGINT

int fail(std::FILE* err, std::string message, int code = kWrongUse) {
  std::ranges::replace(message, '\n', ' ');
  fmt::print(err, "strata: {}\n", message);
  return code;
}

}  // namespace

int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err) {
  CLI::App app("Tools around training with Strata", "strata");
  app.require_subcommand(1);
  try {
    add_inspect(app, out);
    CLI::App* bench = app.add_subcommand("bench", "Measure what this machine gives");
    bench->require_subcommand(1);
    add_bench_io(*bench, out);
    add_bench_optim(*bench, out);
    add_bench_step(*bench, out);
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::CallForHelp&) {
    fmt::print(out, "{}", app.help());
    return 0;
  } catch (const CLI::CallForAllHelp&) {
    fmt::print(out, "{}", app.help("", CLI::AppFormatMode::All));
    return 0;
  } catch (const CLI::Error& error) {
    return fail(err, fmt::format("{} (see --help)", error.what()));
  } catch (const Interrupted& interrupted) {
    return fail(err, interrupted.what(), kInterrupted);
  } catch (const std::exception& error) {
    return fail(err, error.what());
  }
}

}  // namespace strata::tool
