#include "layout/layout.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace strata {

std::uint64_t Segment::true_elems(Rank rank) const {
  const std::uint64_t begin = rank.value * shard_elems;
  return begin >= used_elems ? 0 : std::min(shard_elems, used_elems - begin);
}

std::pair<std::uint32_t, TensorRange> Layout::locate(UnitId unit, TensorId tensor) const {
  for (const std::uint32_t index : segments_of(unit)) {
    for (const TensorRange& range : segments[index].tensors) {
      if (range.tensor == tensor) return {index, range};
    }
  }
  STRATA_ASSERT(false, "a tensor without a segment");
  return {};
}

std::vector<TensorPart> tensor_parts(const Segment& segment, Rank rank, std::uint64_t begin_elems,
                                     std::uint64_t end_elems) {
  std::vector<TensorPart> parts;
  for_each_tensor_part(segment, rank, begin_elems, end_elems,
                       [&](const TensorPart& part) { parts.push_back(part); });
  return parts;
}

namespace {

Segment make_segment(UnitId unit, const UnitSpec& spec, bool trainable, std::uint32_t group_size) {
  Segment segment{.unit = unit, .trainable = trainable, .tensors = {}};
  for (std::uint32_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    if (tensor.trainable != trainable) continue;
    const std::uint64_t begin = round_up(segment.used_elems, kTensorAlignElems);
    segment.tensors.push_back({TensorId{i}, tensor.group, begin, tensor.count_elems()});
    segment.used_elems = begin + tensor.count_elems();
  }
  segment.shard_elems = round_up(segment.used_elems, group_size * kShardAlignElems) / group_size;
  return segment;
}

}  // namespace

Layout make_layout(const Model& model, std::uint32_t group_size) {
  Layout layout{.group_size = group_size, .units = {}, .segments = {}};
  for (std::uint32_t u = 0; u < model.units().size(); ++u) {
    const UnitSpec& spec = model.units()[u];
    UnitLayout unit{.name = spec.name, .segments = {}};
    for (const bool trainable : {true, false}) {
      Segment segment = make_segment(UnitId{u}, spec, trainable, group_size);
      if (segment.tensors.empty()) continue;
      unit.segments.push_back(static_cast<std::uint32_t>(layout.segments.size()));
      layout.segments.push_back(std::move(segment));
    }
    layout.units.push_back(std::move(unit));
  }
  return layout;
}

}  // namespace strata
