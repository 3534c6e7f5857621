// What a run says at its end, as text for people and as the JSON file of docs/train_gpt.md.
// Thread: any; values only, but for write_summary_json(), which blocks on the file.
#pragma once

#include <string>
#include <string_view>

#include "record.hpp"

namespace train_gpt {

// Numbers that both forms derive from the record.
struct StepTimes {
  double median = 0;          // seconds per step
  double mean = 0;            // of the same steps, so that the parts below add up to it
  strata::StepSeconds parts;  // means
  double compute = 0;  // mean seconds for which the compute stream was busy, beside the parts
  double other = 0;    // mean seconds in none of the parts: batches, enqueueing, the loss
};
// Over the steps after the first two, which are warm-up, or over all when there are no more.
StepTimes step_times(const RunRecord& run);

// Bytes per parameter and step over all ranks: each link's sum divided by the whole model.
struct LinkRates {
  double nvme_read = 0, nvme_written = 0, host_to_device = 0, device_to_host = 0;
};
LinkRates moved_per_parameter(const RunRecord& run);
LinkRates floor_per_parameter(const RunRecord& run);

// Bytes at rest, in all tiers of all ranks.
std::uint64_t states_bytes(const RunRecord& run);

std::string summary_text(const RunRecord& run);

// Throws strata::Error(io) that names the file.
void write_summary_json(const RunRecord& run, const std::string& path);

// Throws strata::Error(config) naming the flag when the file cannot be created, before hours of
// training are spent.
void check_output_path(const std::string& path, std::string_view flag);

}  // namespace train_gpt
