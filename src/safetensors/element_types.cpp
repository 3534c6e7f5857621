#include "safetensors/element_types.hpp"

#include "base/check.hpp"

namespace strata::safetensors {
namespace {

constexpr ElementType kTypes[] = {
    {"F32", 32, DType::fp32},
    {"BF16", 16, DType::bf16},
    {"F16", 16, DType::fp16},
    {"F64", 64, {}},
    {"BOOL", 8, {}},
    {"U8", 8, {}},
    {"I8", 8, {}},
    {"U16", 16, {}},
    {"I16", 16, {}},
    {"U32", 32, {}},
    {"I32", 32, {}},
    {"U64", 64, {}},
    {"I64", 64, {}},
    {"C64", 64, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
};

}  // namespace

const ElementType* element_type(std::string_view word) {
  for (const ElementType& type : kTypes) {
    if (type.word == word) return &type;
  }
  return nullptr;
}

const ElementType& element_type(DType dtype) {
  for (const ElementType& type : kTypes) {
    if (type.dtype == dtype) return type;
  }
  STRATA_ASSERT(false, "every DType has a word");
}

}  // namespace strata::safetensors
