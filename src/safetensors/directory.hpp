// What a directory of tensors holds: the files to read, and which tensor of which file counts.
#pragma once

#include <string>
#include <vector>

#include "safetensors/tensor_file.hpp"
#include "strata/safetensors.hpp"

namespace strata::safetensors {

struct Directory {
  std::vector<std::string> paths;  // of the files
  std::vector<FileIdentity> identities;
  std::vector<Tensor> tensors;  // in the order of their names
  std::vector<std::string> notices;
};

// See Reader::open.
Directory read_directory(const std::string& directory);

}  // namespace strata::safetensors
