// Which rank holds which elements of which tensor: the `slice` layout. The tensors of a unit that
// share (dtype, trainable) form a segment; a segment is flattened, padded to group size x 64
// elements and cut into equal shards, rank r keeping [r * S, (r + 1) * S). A gather is an
// all-gather of shards, so every rank's links carry 1/N of the bytes.
//
// Independent of tiers, budgets and sector sizes. Pure; immutable after make_layout().
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/model.hpp"
#include "strata/types.hpp"

namespace strata {

// Tensors start at multiples of this many elements: 256 bytes in a 2-byte dtype.
inline constexpr std::uint64_t kTensorAlignElems = 128;
// A shard is a multiple of this many elements.
inline constexpr std::uint64_t kShardAlignElems = 64;

// A tensor's place in its segment.
struct TensorRange {
  TensorId tensor;
  std::uint32_t group = 0;
  std::uint64_t begin_elems = 0;
  std::uint64_t count_elems = 0;

  std::uint64_t end_elems() const { return begin_elems + count_elems; }
};

struct Segment {
  UnitId unit;
  bool trainable = true;
  std::vector<TensorRange> tensors;  // ascending, disjoint
  std::uint64_t used_elems = 0;      // end of the last tensor
  std::uint64_t shard_elems = 0;     // S; N * S >= used_elems

  // Elements of rank r's shard that lie below used_elems; 0 for an empty shard.
  std::uint64_t true_elems(Rank rank) const;
};

struct UnitLayout {
  std::string name;
  std::vector<std::uint32_t> segments;  // indices into Layout::segments
};

struct Layout {
  std::uint32_t group_size = 1;
  std::vector<UnitLayout> units;
  std::vector<Segment> segments;

  std::span<const std::uint32_t> segments_of(UnitId unit) const {
    return units[unit.value].segments;
  }
  // The segment that holds a tensor and its range there.
  std::pair<std::uint32_t, TensorRange> locate(UnitId unit, TensorId tensor) const;
};

// A part of a tensor that lies in some range of a shard.
struct TensorPart {
  TensorRange tensor;
  std::uint64_t offset_in_tensor_elems = 0;
  std::uint64_t offset_in_range_elems = 0;  // from the start of the asked range
  std::uint64_t count_elems = 0;
};

// Calls `visit` with the parts of tensors inside elements [begin, end) of rank's shard, ascending;
// padding is left out.
template <class Visit>
void for_each_tensor_part(const Segment& segment, Rank rank, std::uint64_t begin_elems,
                          std::uint64_t end_elems, Visit&& visit) {
  const std::uint64_t begin = rank.value * segment.shard_elems + begin_elems;
  const std::uint64_t end = rank.value * segment.shard_elems + end_elems;
  if (begin == end) return;
  auto tensor = std::ranges::lower_bound(segment.tensors, begin + 1, {}, &TensorRange::end_elems);
  for (; tensor != segment.tensors.end() && tensor->begin_elems < end; ++tensor) {
    const std::uint64_t from = std::max(begin, tensor->begin_elems);
    const std::uint64_t to = std::min(end, tensor->end_elems());
    visit(TensorPart{*tensor, from - tensor->begin_elems, from - begin, to - from});
  }
}

// The same as a list.
std::vector<TensorPart> tensor_parts(const Segment& segment, Rank rank, std::uint64_t begin_elems,
                                     std::uint64_t end_elems);

Layout make_layout(const Model& model, std::uint32_t group_size);

}  // namespace strata
