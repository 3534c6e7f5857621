// How much of every stream's work is known to have run before a point (Fidge 1988, Mattern 1989):
// one counter per stream. A point that covers (s, n) comes after the n-th op of stream s.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "strata/types.hpp"

namespace strata::test {

class VectorClock {
 public:
  std::uint64_t at(StreamId stream) const {
    return stream.value < counts_.size() ? counts_[stream.value] : 0;
  }

  std::uint64_t tick(StreamId stream) {
    if (stream.value >= counts_.size()) counts_.resize(stream.value + 1);
    return ++counts_[stream.value];
  }

  void join(const VectorClock& other) {
    if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
    for (std::size_t i = 0; i < other.counts_.size(); ++i) {
      counts_[i] = std::max(counts_[i], other.counts_[i]);
    }
  }

  bool covers(const VectorClock& other) const {
    for (std::uint32_t i = 0; i < other.counts_.size(); ++i) {
      if (other.counts_[i] > at(StreamId{i})) return false;
    }
    return true;
  }

 private:
  std::vector<std::uint64_t> counts_;
};

}  // namespace strata::test
