#include "base/reduce.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/element.hpp"

namespace strata {
namespace {

// Elements summed at once: the accumulators (8 KiB) stay in the first-level cache beside the
// inputs. Being a local array, they also free the loops of alias checks when `out` is an input.
constexpr std::uint64_t kTileElems = 2048;

template <class T>
void start_sum(float* sum, const T* first, const T* second, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    sum[i] = element::to_float(first[i]) + element::to_float(second[i]);
  }
}

template <class T>
void add_to_sum(float* sum, const T* input, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) sum[i] += element::to_float(input[i]);
}

template <class T>
void round_sum(T* out, const float* sum, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) out[i] = element::from_float<T>(sum[i]);
}

template <class T>
void sum_typed(T* out, std::span<const void* const> inputs, std::uint64_t count_elems) {
  alignas(64) float sum[kTileElems];
  for (std::uint64_t begin = 0; begin < count_elems; begin += kTileElems) {
    const std::uint64_t count = std::min(kTileElems, count_elems - begin);
    const auto input = [&](std::size_t r) { return static_cast<const T*>(inputs[r]) + begin; };
    start_sum(sum, input(0), input(1), count);
    for (std::size_t r = 2; r < inputs.size(); ++r) add_to_sum(sum, input(r), count);
    round_sum(out + begin, sum, count);
  }
}

}  // namespace

void sum_in_rank_order(void* out, std::span<const void* const> inputs, std::uint64_t count_elems,
                       DType dtype) {
  STRATA_ASSERT(!inputs.empty(), "a sum over no ranks");
  if (count_elems == 0) return;
  if (inputs.size() == 1) {
    const auto* first = static_cast<const char*>(inputs[0]);
    if (first != out)
      std::copy_n(first, count_elems * size_of(dtype).value, static_cast<char*>(out));
    return;
  }
  switch (dtype) {
    case DType::fp32: return sum_typed(static_cast<float*>(out), inputs, count_elems);
    case DType::bf16: return sum_typed(static_cast<element::Bf16*>(out), inputs, count_elems);
    case DType::fp16: return sum_typed(static_cast<element::Fp16*>(out), inputs, count_elems);
  }
  STRATA_ASSERT(false, "unknown dtype");
}

}  // namespace strata
