// One safetensors file on disk: its checked header, and where its data begins.
#pragma once

#include <string>

#include "safetensors/file.hpp"
#include "safetensors/header.hpp"

namespace strata::safetensors {

struct TensorFile {
  std::string path;
  FileIdentity identity;
  Header header;
  std::uint64_t data_begin = 0;
};

// Throws Error: io; corrupt for a header that parse_header() refuses, or whose length is none.
TensorFile open_tensor_file(const std::string& path);

}  // namespace strata::safetensors
