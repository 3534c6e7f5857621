// `model.safetensors.index.json`: which file of the directory holds which tensor. Its file names
// are names, not paths, so that no index leads out of its directory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata::safetensors {

inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

struct IndexEntry {
  std::string tensor;
  std::uint32_t file = 0;  // index into Index::files
};

struct Index {
  std::vector<std::string> files;   // each once, in order
  std::vector<IndexEntry> entries;  // in the order of the tensors' names
};

// Throws Error: corrupt (not JSON of an index's form, a tensor twice), config (a file name that is
// a path, or no name of a safetensors file). Memory: a fixed multiple of json.size().
Index parse_index(std::string_view json, const std::string& path);

struct IndexLine {
  std::string_view tensor, file;
};

// The text of an index. Pre: no tensor is there twice.
std::string index_json(std::span<const IndexLine> lines, std::uint64_t total_bytes,
                       std::uint64_t total_elems);

}  // namespace strata::safetensors
