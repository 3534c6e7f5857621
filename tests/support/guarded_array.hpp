// Memory for tests of kernels.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/element.hpp"

namespace strata::test {

// Elements at an address that only their type aligns, with bytes around them that nobody may touch.
class GuardedArray {
 public:
  GuardedArray(DType dtype, std::uint64_t count, std::uint64_t shift)
      : dtype_(dtype),
        count_(count),
        begin_bytes_((kGuardElems + shift) * size_of(dtype).value),
        bytes_(begin_bytes_ + (count + kGuardElems) * size_of(dtype).value, std::byte{0xA5}) {}

  void* data() { return bytes_.data() + begin_bytes_; }
  float at(std::uint64_t i) const { return element::load(bytes_.data() + begin_bytes_, dtype_, i); }
  void set(std::uint64_t i, float value) { element::store(data(), dtype_, i, value); }

  // Any NaN is as good as any other.
  bool same_as(const GuardedArray& other) const {
    if (bytes_ == other.bytes_) return true;
    const std::size_t end_bytes = begin_bytes_ + count_ * size_of(dtype_).value;
    const auto same_bytes = [&](std::size_t from, std::size_t to) {
      return std::memcmp(bytes_.data() + from, other.bytes_.data() + from, to - from) == 0;
    };
    if (!same_bytes(0, begin_bytes_) || !same_bytes(end_bytes, bytes_.size())) return false;
    for (std::uint64_t i = 0; i < count_; ++i) {
      const std::size_t at_bytes = begin_bytes_ + i * size_of(dtype_).value;
      if (same_bytes(at_bytes, at_bytes + size_of(dtype_).value)) continue;
      if (!std::isnan(at(i)) || !std::isnan(other.at(i))) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kGuardElems = 32;

  DType dtype_;
  std::uint64_t count_;
  std::size_t begin_bytes_;
  std::vector<std::byte> bytes_;
};

}  // namespace strata::test
