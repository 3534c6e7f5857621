// The element types of the format: their words, their sizes, and which of them Strata computes
// with. From the enumeration of safetensors 0.6. Constants; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "strata/types.hpp"

namespace strata::safetensors {

struct ElementType {
  std::string_view word;
  std::uint32_t bits = 0;
  std::optional<DType> dtype;
};

// Null for a word that the format does not have.
const ElementType* element_type(std::string_view word);

const ElementType& element_type(DType dtype);

}  // namespace strata::safetensors
