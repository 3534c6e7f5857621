// A libFuzzer target: the header and the index of safetensors files that anybody may have written.
// The first byte chooses the parser, the next two the bytes of data behind a header.
//
//   cmake --preset clang -DSTRATA_FUZZERS=ON && cmake --build --preset clang --target
//   safetensors_fuzz
//   build/clang/tests/fuzz/safetensors_fuzz -dict=tests/fuzz/safetensors.dict -max_len=2048 \
//     CORPUS tests/fuzz/safetensors_corpus
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "support/safetensors_invariants.hpp"

// The name that libFuzzer calls.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  using namespace strata;
  if (size < 3) return 0;
  const std::uint64_t data_bytes = data[1] + 256ULL * data[2];
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  try {
    if (data[0] % 2 == 0) {
      test::check_header(safetensors::parse_header(text, data_bytes, "FILE"), data_bytes);
    } else {
      test::check_index(safetensors::parse_index(text, "FILE"));
    }
  } catch (const Error& error) {
    test::check_refusal(error, "FILE");
  }
  return 0;
}
