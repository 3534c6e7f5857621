#include "pretrained.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "failure.hpp"
#include "in_step.hpp"
#include "llama_tensors.hpp"
#include "strata/error.hpp"

namespace train_gpt {

using strata::safetensors::Reader;
using strata::safetensors::Tensor;

Pretrained::Pretrained(const std::string& directory, const GptConfig& model)
    : reader_(Reader::open(directory)), warnings_(reader_.notices()) {
  std::vector<strata::safetensors::Expected> expected;
  for (LlamaTensor& tensor : llama_tensors(model)) {
    names_.push_back(tensor.name);
    expected.push_back({std::move(tensor.name), std::move(tensor.shape)});
  }
  take_extra(reader_.match(expected));
}

void Pretrained::take_extra(const std::vector<std::string>& names) {
  std::vector<std::string> unused;
  for (const std::string& name : names) {
    if (is_llama_bias(name)) {
      check_bias(*reader_.find(name));
    } else if (!is_llama_buffer(name)) {
      unused.push_back(name);
    }
  }
  if (unused.empty()) return;
  warnings_.push_back(fmt::format("--init-from: the model does not use {} ({})",
                                  strata::safetensors::listed(unused), reader_.files().front()));
}

void Pretrained::check_bias(const Tensor& tensor) {
  const auto fail = [&](std::string_view what) {
    throw strata::Error(strata::ErrorCode::config, fmt::format("tensor {} {}", tensor.name, what),
                        {.path = reader_.files()[tensor.file]});
  };
  if (!tensor.dtype) fail("is a bias that cannot be read, and train_gpt has none");
  constexpr std::uint64_t kPiece = 4096;
  std::vector<float> values(std::min(kPiece, tensor.count_elems));
  for (std::uint64_t at = 0; at < tensor.count_elems; at += kPiece) {
    values.resize(std::min(kPiece, tensor.count_elems - at));
    reader_.read(tensor, at, values);
    if (std::ranges::any_of(values, [](float value) { return value != 0; })) {
      fail("is not all 0, and train_gpt has no biases; choose a model without");
    }
  }
}

void Pretrained::initialize(strata::Session& session) {
  std::size_t first = 0;  // of the unit's tensors in names_
  const auto& units = session.model().units();
  for (std::uint32_t u = 0; u < units.size(); ++u) {
    const auto read = [&](const strata::TensorSlice& slice, std::span<float> values) {
      const Tensor& tensor = *reader_.find(names_[first + slice.tensor.value]);
      blaming_data([&] { reader_.read(tensor, slice.offset_elems, values); });
    };
    session.initialize(strata::UnitId{u}, read);
    keep_in_step(session.communicator());
    first += units[u].tensors.size();
  }
}

}  // namespace train_gpt
