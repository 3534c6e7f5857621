// The results of `strata bench io` for people (80 columns) and for programs. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "bench_io_plan.hpp"
#include "bench_io_results.hpp"

namespace strata::tool {

// What the command will do, before it does it.
std::string bench_io_announcement(const BenchIoOptions& options, const BenchIoPlan& plan);

std::string bench_io_text(const BenchIoOptions& options, const BenchIoPlan& plan,
                          const BenchIoResults& results);

// The text with line breaks between words, for messages of others; ends with one.
std::string wrapped(std::string_view text);

// One JSON object. Rates in bytes per second, latencies in seconds; null where there was no bare
// loop to compare with.
std::string bench_io_json(const BenchIoOptions& options, const BenchIoPlan& plan,
                          const BenchIoResults& results);

}  // namespace strata::tool
