#include "export.hpp"

#include <cstring>

#include "in_step.hpp"
#include "llama_tensors.hpp"
#include "strata/error.hpp"
#include "strata/safetensors.hpp"

namespace train_gpt {
namespace {

using strata::safetensors::OutputTensor;
using strata::safetensors::Writer;

Writer make_writer(const ExportOptions& options) {
  std::vector<OutputTensor> tensors;
  for (LlamaTensor& tensor : llama_tensors(options.config.model)) {
    tensors.push_back({std::move(tensor.name), options.dtype, std::move(tensor.shape)});
  }
  return {options.directory,
          std::move(tensors),
          {.most_file_bytes = options.most_file_bytes,
           .companions = {{"config.json", llama_config_json(options.config, options.dtype)}}}};
}

const char* kind_of_values(const strata::Config& config) {
  const bool masters = config.precision.param != strata::DType::fp32 &&
                       config.precision.master == strata::Config::Masters::fp32;
  return masters ? "master" : "param";
}

void write_units(strata::Session& session, Writer& writer) {
  const char* kind = kind_of_values(session.config());
  std::size_t first = 0;  // of the unit's tensors in the writer's
  const auto& units = session.model().units();
  for (std::uint32_t u = 0; u < units.size(); ++u) {
    session.read(strata::UnitId{u}, kind,
                 [&](const strata::TensorSlice& slice, std::span<const float> values) {
                   writer.write(first + slice.tensor.value, slice.offset_elems, values);
                 });
    writer.flush();
    keep_in_step(session.communicator());
    first += units[u].tensors.size();
  }
}

// Nobody may rename files in which some rank's part is missing.
void check_all_written(strata::Communicator& communicator, const Writer& writer) {
  const std::uint64_t mine = writer.written_elems();
  const auto all = communicator.exchange(std::as_bytes(std::span(&mine, 1)));
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < all.size(); at += sizeof(mine)) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, all.data() + at, sizeof(theirs));
    sum += theirs;
  }
  if (sum == writer.count_elems()) return;
  throw strata::Error(strata::ErrorCode::diverged,
                      "the ranks together have not written every element of the export once");
}

}  // namespace

std::size_t export_weights(strata::Session& session, const ExportOptions& options) {
  strata::Communicator& communicator = session.communicator();
  const bool is_first = communicator.rank().value == 0;
  Writer writer = make_writer(options);
  if (is_first) writer.create();
  keep_in_step(communicator);
  write_units(session, writer);
  check_all_written(communicator, writer);
  if (is_first) writer.commit();
  keep_in_step(communicator);
  return writer.file_names().size();
}

}  // namespace train_gpt
