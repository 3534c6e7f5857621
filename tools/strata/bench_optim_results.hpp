// What `strata bench optim` measured. Values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench_optim_plan.hpp"
#include "statistics.hpp"

namespace strata::tool {

// The largest error of one state over random elements, in units of its bound.
struct StateError {
  std::string state;  // "weight", "moment1", "moment2"
  double fraction = 0;
  std::string operand;             // the largest one where the error was largest
  double fraction_of_typical = 0;  // over elements as training has them only
};

struct KernelResult {
  KernelCase what;
  Spread params_per_s;
  Spread fraction_of_bound;
  Spread four_pass_params_per_s;
  std::vector<StateError> errors;
};

struct StreamingResult {
  std::uint64_t params = 0;
  unsigned workers = 0;
  double disk_read_bytes_per_s = 0;  // as declared
  double disk_write_bytes_per_s = 0;
  double io_seconds = 0;      // of one update, at the declared rates
  double kernel_seconds = 0;  // of one update, on the same tiles in memory
  Spread seconds;             // StepResult.seconds.update
  Spread fraction_of_bound;
  double read_bytes_per_param = 0;
  double written_bytes_per_param = 0;
};

struct BenchOptimResults {
  std::string instruction_set;
  Bytes page_size;
  Spread bandwidth_bytes_per_s;
  std::vector<KernelResult> kernels;
  StreamingResult streaming;
};

}  // namespace strata::tool
