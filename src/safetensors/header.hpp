// The header of one safetensors file: JSON that maps names to types, shapes and places in the data
// behind it. A Header exists only if every tensor lies inside the data, has the bytes that its
// shape asks for, overlaps no other, and together they leave no hole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "safetensors/element_types.hpp"

namespace strata::safetensors {

// Of the format. A header of this length is read whole.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
// The length of the header, little endian.
inline constexpr std::uint64_t kLengthBytes = 8;

struct HeaderTensor {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::uint64_t count_elems = 0;
  std::uint64_t begin = 0, end = 0;  // bytes behind the header
};

struct Header {
  std::vector<HeaderTensor> tensors;  // in the order of their names
  std::vector<std::pair<std::string, std::string>> metadata;
};

// `json` is the header of the file at `path`, behind which `data_bytes` follow. Throws
// Error(corrupt) that names the file and the tensor. Memory: a fixed multiple of json.size().
Header parse_header(std::string_view json, std::uint64_t data_bytes, const std::string& path);

// The product of the extents; nothing when it does not fit into 64 bits.
std::optional<std::uint64_t> count_of(const std::vector<std::uint64_t>& shape);

}  // namespace strata::safetensors
