// Files of the safetensors format made byte by byte, right or wrong, for tests of its reader.
#pragma once

#include <bit>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace strata::test {

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string length_word(std::uint64_t length) {
  std::string word;
  for (int i = 0; i < 8; ++i) word += static_cast<char>(length >> (8 * i) & 0xFFU);
  return word;
}

// A whole file.
inline std::string tensor_file(std::string_view json, std::string_view data) {
  return length_word(json.size()) + std::string(json) + std::string(data);
}

}  // namespace strata::test
