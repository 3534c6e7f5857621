// Which bytes a set of tensors becomes: the files, their headers and every tensor's place. A pure
// function, so that ranks that call it alike agree without talking.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/safetensors.hpp"

namespace strata::safetensors {

struct PlannedFile {
  std::string name;
  std::string head;  // the length and the JSON: all bytes before the data
  std::uint64_t size_bytes = 0;
};

struct PlannedTensor {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;  // in that file
  std::uint64_t count_elems = 0;
};

struct WritePlan {
  std::vector<PlannedFile> files;
  std::vector<PlannedTensor> tensors;  // in the order of the call
  std::string index;                   // empty with one file
};

// Tensors go to files in the order of the call; inside a file those of 32 bits come first, so that
// every tensor stands at a multiple of its width. Throws Error(invalid_argument): see Writer.
WritePlan plan_files(std::span<const OutputTensor> tensors, Bytes most_file_bytes);

}  // namespace strata::safetensors
