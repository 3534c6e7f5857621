// What the JSON of a header says, before anybody has asked whether it can be true.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata::safetensors {

struct HeaderEntry {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_type = false, has_shape = false, has_offsets = false;
};

struct HeaderText {
  std::vector<HeaderEntry> entries;  // as they come, names may recur
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Throws Error(corrupt) for what is not JSON of a header's form.
HeaderText read_header_json(std::string_view json, const std::string& path);

}  // namespace strata::safetensors
