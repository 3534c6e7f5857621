// What must hold of every header and index that the parsers accept, written independently of them.
// Dies when it does not, so that a fuzzer sees it as well as a test.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "safetensors/header.hpp"
#include "safetensors/index.hpp"
#include "strata/error.hpp"

namespace strata::test {

// Each byte of the data is exactly one tensor's: disjoint ranges inside the data whose lengths add
// up to all of it.
inline void check_header(const safetensors::Header& header, std::uint64_t data_bytes) {
  __extension__ using Wide = unsigned __int128;
  Wide covered = 0;
  std::set<std::string> names;
  std::set<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const safetensors::HeaderTensor& tensor : header.tensors) {
    STRATA_ASSERT(names.insert(tensor.name).second, "a name is there twice");
    STRATA_ASSERT(tensor.begin <= tensor.end && tensor.end <= data_bytes, "outside the data");
    Wide bits = tensor.type->bits;
    for (const std::uint64_t extent : tensor.shape) bits = std::min(bits * extent, Wide{1} << 90);
    STRATA_ASSERT(bits == Wide{tensor.end - tensor.begin} * 8, "the shape does not fit the place");
    covered += tensor.end - tensor.begin;
    if (tensor.begin < tensor.end) ranges.emplace(tensor.begin, tensor.end);
  }
  STRATA_ASSERT(covered == data_bytes, "the tensors are not the data");
  std::uint64_t last_end = 0;
  for (const auto& [begin, end] : ranges) {
    STRATA_ASSERT(begin >= last_end, "tensors overlap");
    last_end = end;
  }
}

inline void check_index(const safetensors::Index& index) {
  for (const std::string& file : index.files) {
    STRATA_ASSERT(file.find('/') == file.npos && !file.starts_with('.'), "a file name is a path");
  }
  for (const safetensors::IndexEntry& entry : index.entries) {
    STRATA_ASSERT(entry.file < index.files.size(), "an entry without a file");
  }
}

// One line of bounded length that names the file.
inline void check_refusal(const Error& error, std::string_view path) {
  const std::string_view message = error.what();
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20; };
  STRATA_ASSERT(std::ranges::none_of(message, is_control), message);
  STRATA_ASSERT(message.size() < 600, message);
  STRATA_ASSERT(message.find(path) != message.npos, message);
  STRATA_ASSERT(error.code() == ErrorCode::corrupt || error.code() == ErrorCode::config, message);
}

}  // namespace strata::test
