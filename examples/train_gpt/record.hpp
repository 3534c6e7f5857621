// What one run leaves to tell: the numbers of every step and of every rank. The summary and its
// JSON file both print this. Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "strata/machine.hpp"
#include "strata/session.hpp"

namespace train_gpt {

// One step as all ranks see it; the times and bytes are this rank's.
struct StepRecord {
  double loss = 0;  // mean over the tokens of all ranks
  double grad_norm = 0;
  double learning_rate = 0;
  double loss_scale = 1;
  bool skipped = false;
  double seconds = 0;          // from the first batch to the agreed loss
  double compute_seconds = 0;  // for which the compute stream was busy
  strata::StepSeconds parts;
};

struct EvalRecord {
  std::uint64_t step = 0;  // after this many steps
  double loss = 0;
};

struct LinkNumbers {
  std::uint64_t nvme_read = 0, nvme_written = 0, host_to_device = 0, device_to_host = 0;
};

struct TierNumbers {
  std::uint64_t budget = 0, planned = 0, reserved = 0, peak = 0, at_rest = 0;
};

// Of one rank; ranks send it to each other as bytes.
struct RankNumbers {
  std::int64_t pid = 0;
  LinkNumbers session_bytes;                // since open
  LinkNumbers step_bytes;                   // within training steps
  std::uint64_t gathered = 0, reduced = 0;  // received from peers since open
  // Bytes of this process's storage I/O since open, as /proc/self/io counts them.
  std::uint64_t os_read_bytes = 0, os_written_bytes = 0;
  std::uint64_t peak_rss_bytes = 0;
  std::uint64_t device_scratch = 0, host_scratch = 0;
  TierNumbers tiers[strata::kTierCount];
  strata::Session::LinkFloor floor;  // per parameter of this rank's share and step
};

// What each resource of the first rank did in training steps, evaluations left out.
struct ResourceNumbers {
  double seconds = 0;  // from the first step to the end of the last update
  strata::BusySeconds busy;
  strata::LinkBytes bytes;
  std::optional<strata::MachineRates> rates;  // found before the run
};

struct RunRecord {
  Options options;
  std::uint64_t parameters = 0;
  std::uint64_t tokens_per_step = 0;  // of all ranks
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evals;
  std::vector<RankNumbers> ranks;
  strata::StorageFacts storage;  // of rank 0
  strata::ScheduleFacts schedule;
  ResourceNumbers resources;
  std::string weights_hash;  // empty unless asked for
  bool interrupted = false;
};

// The operating system's view of this process.
struct OsCounters {
  std::uint64_t read_bytes = 0, written_bytes = 0;
};
OsCounters read_os_counters();  // zeros where /proc/self/io cannot be read
std::uint64_t peak_rss_bytes();

// Everything that only this rank knows. `os_at_open`: before the session opened.
RankNumbers numbers_of_rank(strata::Session& session, const Options& options,
                            const strata::LinkBytes& step_bytes, const OsCounters& os_at_open);

// All ranks' numbers, in rank order. Collective. Blocks.
std::vector<RankNumbers> gather_numbers(strata::Communicator& communicator,
                                        const RankNumbers& mine);

}  // namespace train_gpt
