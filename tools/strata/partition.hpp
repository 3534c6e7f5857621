// What `strata inspect partition` shows, worked out once for its three forms: which rank holds
// which elements of which tensor. Units that are cut alike and stand side by side form a group,
// so that a model of a hundred equal blocks is told in a few lines. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/model.hpp"
#include "strata/types.hpp"

namespace strata::tool {

// Elements [begin, end) of a tensor that one rank holds.
struct HeldPart {
  std::uint32_t tensor = 0;  // index into SegmentView::tensors
  std::uint64_t begin_elems = 0;
  std::uint64_t end_elems = 0;
};

struct ShardView {
  std::vector<HeldPart> parts;
  std::uint64_t padding_elems = 0;
};

struct TensorInSegment {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin_elems = 0;  // in the segment
  std::uint64_t count_elems = 0;
};

struct SegmentView {
  bool trainable = true;
  std::vector<TensorInSegment> tensors;
  std::uint64_t shard_elems = 0;
  std::vector<ShardView> shards;  // by rank

  std::uint64_t count_elems() const;  // of the tensors
  std::uint64_t stored_elems() const { return shard_elems * shards.size(); }
};

struct UnitView {
  std::string name;
  std::vector<SegmentView> segments;
};

struct UnitGroup {
  UnitView first;
  std::string last_name;
  std::uint32_t count = 1;

  std::string title() const;  // "block.0", "block.0 to block.11 (12 units)"
};

struct Partition {
  std::uint32_t ranks = 1;
  std::uint32_t units = 0;
  std::uint64_t count_elems = 0;   // of the model
  std::uint64_t stored_elems = 0;  // over all ranks, with padding
  std::vector<UnitGroup> groups;
};

// `only_unit`: the name of the one unit to show; empty for all. Throws Error(invalid_argument) when
// the model has no such unit. Pre: ranks >= 1.
Partition make_partition(const Model& model, std::uint32_t ranks, const std::string& only_unit);

std::string shape_text(const std::vector<std::uint64_t>& shape);     // "20 x 15"
std::string grouped_digits(std::uint64_t count);                     // "12,582,912"
std::string counted(std::uint64_t count, const std::string& thing);  // "1 rank", "2 ranks"

std::string partition_text(const Partition& partition);
// The same for programs.
std::string partition_json(const Partition& partition);

}  // namespace strata::tool
