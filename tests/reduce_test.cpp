#include "base/reduce.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/wire_values.hpp"

namespace strata::test {
namespace {

using Inputs = std::vector<std::vector<std::byte>>;

Inputs random_inputs(std::size_t ranks, std::uint64_t count, DType dtype) {
  Inputs inputs(ranks, std::vector<std::byte>(count * size_of(dtype).value));
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::uint64_t i = 0; i < count; ++i) {
      store_wire(inputs[r], i, random_wire(dtype, r + 1, i), dtype);
    }
  }
  return inputs;
}

std::vector<const void*> pointers(const Inputs& inputs) {
  std::vector<const void*> list;
  for (const auto& input : inputs) list.push_back(input.data());
  return list;
}

TEST(SumInRankOrder, MatchesTheReferenceAroundTileBorders) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::size_t ranks : {1, 2, 3, 7}) {
      for (const std::uint64_t count : {0, 1, 2047, 2048, 2049, 5000}) {
        const Inputs inputs = random_inputs(ranks, count, dtype);
        std::vector<std::byte> out(count * size_of(dtype).value);
        sum_in_rank_order(out.data(), pointers(inputs), count, dtype);
        std::vector<std::uint32_t> elements(ranks);
        for (std::uint64_t i = 0; i < count; ++i) {
          for (std::size_t r = 0; r < ranks; ++r) elements[r] = load_wire(inputs[r], i, dtype);
          ASSERT_EQ(decode_wire(load_wire(out, i, dtype), dtype), expected_sum(elements, dtype));
        }
      }
    }
  }
}

TEST(SumInRankOrder, MayWriteOverAnyInput) {
  for (std::size_t target = 0; target < 3; ++target) {
    Inputs inputs = random_inputs(3, 5000, DType::bf16);
    std::vector<std::byte> expected(10'000);
    sum_in_rank_order(expected.data(), pointers(inputs), 5000, DType::bf16);
    sum_in_rank_order(inputs[target].data(), pointers(inputs), 5000, DType::bf16);
    EXPECT_TRUE(inputs[target] == expected);
  }
}

TEST(SumInRankOrder, KeepsSignedZeroInfinityAndNan) {
  const float a[4] = {-0.0F, INFINITY, INFINITY, 3e38F};
  const float b[4] = {-0.0F, 1.0F, -INFINITY, 3e38F};
  float out[4] = {};
  const void* inputs[2] = {a, b};
  sum_in_rank_order(out, inputs, 4, DType::fp32);
  EXPECT_TRUE(out[0] == 0 && std::signbit(out[0]));
  EXPECT_EQ(out[1], INFINITY);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], INFINITY);
}

}  // namespace
}  // namespace strata::test
