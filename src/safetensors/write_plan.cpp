#include "safetensors/write_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "safetensors/header.hpp"
#include "safetensors/index.hpp"
#include "safetensors/message_text.hpp"

namespace strata::safetensors {
namespace {

constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max();  // off_t

[[noreturn]] void fail(const OutputTensor& tensor, std::string_view what) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("tensor {} {}", in_quotes(tensor.name), what));
}

std::uint64_t bytes_of(const OutputTensor& tensor) {
  const auto count = count_of(tensor.shape);
  const std::uint64_t width = size_of(tensor.dtype).value;
  if (!count || *count > kMostBytes / 2 / width) fail(tensor, "is too large for a file");
  return *count * width;
}

void check_names(std::span<const OutputTensor> tensors) {
  if (tensors.empty()) throw Error(ErrorCode::invalid_argument, "there is no tensor to write");
  std::vector<const OutputTensor*> order;
  order.reserve(tensors.size());
  for (const OutputTensor& tensor : tensors) {
    if (tensor.name == "__metadata__") fail(tensor, "has a name that the format keeps for itself");
    order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, &OutputTensor::name);
  const auto twice = std::ranges::adjacent_find(order, {}, &OutputTensor::name);
  if (twice != order.end()) fail(**twice, "is there twice");
}

// Indices of the tensors of each file.
std::vector<std::vector<std::size_t>> deal(std::span<const OutputTensor> tensors,
                                           std::uint64_t most_bytes) {
  std::vector<std::vector<std::size_t>> files(1);
  std::uint64_t in_file = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t bytes = bytes_of(tensors[t]);
    const bool full = bytes > most_bytes || in_file > most_bytes - bytes;
    if (full && !files.back().empty()) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().push_back(t);
    in_file += bytes;
  }
  for (auto& file : files) {
    std::stable_partition(file.begin(), file.end(),
                          [&](std::size_t t) { return tensors[t].dtype == DType::fp32; });
  }
  return files;
}

std::string quoted_json(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is not UTF-8, which JSON cannot hold", in_quotes(text)));
  }
}

std::string head_of(std::string json) {
  json.resize(round_up(json.size(), kLengthBytes), ' ');
  if (json.size() > kMostHeaderBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a header of {} bytes is beyond the format's limit of {}", json.size(),
                            kMostHeaderBytes));
  }
  const auto length = std::bit_cast<std::array<char, kLengthBytes>>(std::uint64_t{json.size()});
  return std::string(length.begin(), length.end()) + json;
}

// Places the tensors of one file.
PlannedFile plan_file(std::span<const OutputTensor> tensors, const std::vector<std::size_t>& file,
                      std::uint32_t number, std::vector<PlannedTensor>& places) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t begin = 0;
  for (const std::size_t t : file) {
    const OutputTensor& tensor = tensors[t];
    const std::uint64_t end = begin + bytes_of(tensor);
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        quoted_json(tensor.name), element_type(tensor.dtype).word,
                        fmt::join(tensor.shape, ","), begin, end);
    places[t] = {.file = number, .offset_bytes = begin, .count_elems = *count_of(tensor.shape)};
    begin = end;
  }
  PlannedFile planned{.name = {}, .head = head_of(json + "}"), .size_bytes = begin};
  for (const std::size_t t : file) places[t].offset_bytes += planned.head.size();
  planned.size_bytes += planned.head.size();
  return planned;
}

std::string index_of(std::span<const OutputTensor> tensors, const WritePlan& plan) {
  std::vector<IndexLine> lines;
  std::uint64_t bytes = 0;
  std::uint64_t elems = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    lines.push_back({tensors[t].name, plan.files[plan.tensors[t].file].name});
    bytes += bytes_of(tensors[t]);
    elems += plan.tensors[t].count_elems;
  }
  return index_json(lines, bytes, elems);
}

}  // namespace

WritePlan plan_files(std::span<const OutputTensor> tensors, Bytes most_file_bytes) {
  check_names(tensors);
  std::uint64_t total = 0;
  for (const OutputTensor& tensor : tensors) {
    total += bytes_of(tensor);
    if (total > kMostBytes / 2) fail(tensor, "and those before it are too large for files");
  }
  const auto files = deal(tensors, most_file_bytes.value);
  WritePlan plan;
  plan.tensors.resize(tensors.size());
  for (std::uint32_t f = 0; f < files.size(); ++f) {
    plan.files.push_back(plan_file(tensors, files[f], f, plan.tensors));
    plan.files.back().name =
        files.size() == 1 ? std::string(kSingleFile)
                          : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size());
  }
  if (files.size() > 1) plan.index = index_of(tensors, plan);
  return plan;
}

}  // namespace strata::safetensors
