// What `strata bench step` runs: the step, the machines that it runs on and the modes it runs in,
// and the bounds that follow from their rates. Pure but for free disk space.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/config.hpp"
#include "strata/model.hpp"

namespace strata::tool {

struct BenchStepOptions {
  std::uint32_t units = 32;
  std::uint64_t unit_params = 524'288;
  unsigned rounds = 7;
  double seconds = 0.8;   // of I/O in a step of the paced machine
  std::string directory;  // of the real machine's files; empty: without it
  std::string json;
};

// Seconds that one step takes of each resource, by phase.
struct StepWork {
  double forward_compute = 0;
  double backward_compute = 0;
  double forward_io = 0;   // reads of parameters
  double backward_io = 0;  // the same
  double update_io = 0;    // or the update's CPU, whichever is more

  double forward() const;
  double backward() const;
  // Each phase at its own bottleneck, one after the other.
  double serial() const { return forward() + backward() + update_io; }
  // Updates after the verdict, beside the next forward: what both need of the disk adds up.
  double after_verdict() const;
  // Everything beside everything: the floor of the resources.
  double bound() const;
};

enum class StepMode : std::uint8_t { resident, look_ahead_0, after_verdict, in_backward };
inline constexpr StepMode kStepModes[] = {StepMode::resident, StepMode::look_ahead_0,
                                          StepMode::after_verdict, StepMode::in_backward};
std::string_view name_of(StepMode mode);
double limit_of(StepMode mode, const StepWork& work);

Model step_model(const BenchStepOptions& options);
// Parameters, masters and moments on the nvme tier and gradients on the host, or everything on the
// device.
Config step_config(const BenchStepOptions& options, StepMode mode);

// Bytes that the disk reads and writes in a step.
struct StepBytes {
  double read_forward = 0;
  double read_backward = 0;
  double read_update = 0;
  double written_update = 0;

  double read() const { return read_forward + read_backward + read_update; }
};
StepBytes step_bytes(const BenchStepOptions& options);

// The work of a step on a half-duplex disk of these rates. `compute`: seconds of forward and
// backward together, a third of them forward.
StepWork work_of(const StepBytes& bytes, double read_bytes_per_s, double write_bytes_per_s,
                 double compute);

}  // namespace strata::tool
