#include "partition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "layout/layout.hpp"
#include "strata/error.hpp"

namespace strata::tool {
namespace {

ShardView view_shard(const Segment& segment, const SegmentView& view, Rank rank) {
  ShardView shard{.parts = {}, .padding_elems = segment.shard_elems};
  for (const TensorPart& part : tensor_parts(segment, rank, 0, segment.shard_elems)) {
    const auto tensor =
        std::ranges::find(view.tensors, part.tensor.begin_elems, &TensorInSegment::begin_elems);
    shard.parts.push_back({static_cast<std::uint32_t>(tensor - view.tensors.begin()),
                           part.offset_in_tensor_elems,
                           part.offset_in_tensor_elems + part.count_elems});
    shard.padding_elems -= part.count_elems;
  }
  return shard;
}

SegmentView view_segment(const Segment& segment, const UnitSpec& spec, std::uint32_t ranks) {
  SegmentView view{.trainable = segment.trainable,
                   .tensors = {},
                   .shard_elems = segment.shard_elems,
                   .shards = {}};
  for (const TensorRange& range : segment.tensors) {
    const TensorSpec& tensor = spec.tensors[range.tensor.value];
    view.tensors.push_back({tensor.name, tensor.shape, range.begin_elems, range.count_elems});
  }
  for (std::uint32_t r = 0; r < ranks; ++r)
    view.shards.push_back(view_shard(segment, view, Rank{r}));
  return view;
}

UnitView view_unit(const Model& model, const Layout& layout, UnitId unit) {
  UnitView view{.name = model.unit(unit).name, .segments = {}};
  for (const std::uint32_t s : layout.segments_of(unit)) {
    view.segments.push_back(view_segment(layout.segments[s], model.unit(unit), layout.group_size));
  }
  return view;
}

// Equal tensors are cut equally.
bool cut_alike(const UnitSpec& a, const UnitSpec& b) {
  return std::ranges::equal(a.tensors, b.tensors, [](const TensorSpec& x, const TensorSpec& y) {
    return x.name == y.name && x.shape == y.shape && x.trainable == y.trainable;
  });
}

std::uint32_t unit_named(const Model& model, const std::string& name) {
  const auto unit = std::ranges::find(model.units(), name, &UnitSpec::name);
  if (unit == model.units().end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the model has no unit named \"{}\"", name));
  }
  return static_cast<std::uint32_t>(unit - model.units().begin());
}

}  // namespace

std::uint64_t SegmentView::count_elems() const {
  std::uint64_t count = 0;
  for (const TensorInSegment& tensor : tensors) count += tensor.count_elems;
  return count;
}

std::string UnitGroup::title() const {
  if (count == 1) return first.name;
  return fmt::format("{} to {} ({} units)", first.name, last_name, count);
}

Partition make_partition(const Model& model, std::uint32_t ranks, const std::string& only_unit) {
  const Layout layout = make_layout(model, ranks);
  Partition partition{.ranks = ranks,
                      .units = static_cast<std::uint32_t>(model.units().size()),
                      .count_elems = model.count_elems(),
                      .stored_elems = 0,
                      .groups = {}};
  for (const Segment& segment : layout.segments) {
    partition.stored_elems += segment.shard_elems * ranks;
  }
  if (!only_unit.empty()) {
    const UnitId unit{unit_named(model, only_unit)};
    partition.groups.push_back({view_unit(model, layout, unit), only_unit});
    return partition;
  }
  for (std::uint32_t u = 0; u < model.units().size(); ++u) {
    const UnitSpec& spec = model.units()[u];
    if (u > 0 && cut_alike(model.units()[u - 1], spec)) {
      partition.groups.back().last_name = spec.name;
      ++partition.groups.back().count;
    } else {
      partition.groups.push_back({view_unit(model, layout, UnitId{u}), spec.name});
    }
  }
  return partition;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, " x "));
}

std::string counted(std::uint64_t count, const std::string& thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string grouped_digits(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

}  // namespace strata::tool
