#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "partition.hpp"

namespace strata::tool {
namespace {

std::string describe_shard(const SegmentView& segment, const ShardView& shard) {
  std::vector<std::string> pieces;
  for (const HeldPart& part : shard.parts) {
    pieces.push_back(fmt::format("{}[{}, {})", segment.tensors[part.tensor].name, part.begin_elems,
                                 part.end_elems));
  }
  if (shard.padding_elems > 0) pieces.push_back(fmt::format("{} padding", shard.padding_elems));
  return fmt::format("{}", fmt::join(pieces, ", "));
}

std::string describe_tensors(const SegmentView& segment) {
  std::vector<std::string> tensors;
  for (const TensorInSegment& tensor : segment.tensors) {
    tensors.push_back(
        fmt::format("{} {} at {}", tensor.name, shape_text(tensor.shape), tensor.begin_elems));
  }
  return fmt::format("{}", fmt::join(tensors, ", "));
}

void append_segment(std::string& text, const std::string& title, const SegmentView& segment) {
  text += fmt::format("\n{}, {}: {} elements in {} of {}; {} are padding\n", title,
                      segment.trainable ? "trainable" : "frozen", segment.count_elems(),
                      counted(segment.shards.size(), "shard"), segment.shard_elems,
                      segment.stored_elems() - segment.count_elems());
  text += fmt::format("  tensors: {}\n", describe_tensors(segment));
  const std::size_t widest = fmt::format("[{0}, {0})", segment.stored_elems()).size();
  text += fmt::format("  rank  {:<{}}  holds\n", "shard", widest);
  for (std::size_t r = 0; r < segment.shards.size(); ++r) {
    const std::string range =
        fmt::format("[{}, {})", r * segment.shard_elems, (r + 1) * segment.shard_elems);
    text += fmt::format("  {:>4}  {:<{}}  {}\n", r, range, widest,
                        describe_shard(segment, segment.shards[r]));
  }
}

nlohmann::ordered_json json_of(const SegmentView& segment) {
  nlohmann::ordered_json json;
  json["trainable"] = segment.trainable;
  json["shard_elems"] = segment.shard_elems;
  json["tensors"] = nlohmann::ordered_json::array();
  for (const TensorInSegment& tensor : segment.tensors) {
    json["tensors"].push_back(
        {{"name", tensor.name}, {"shape", tensor.shape}, {"begin", tensor.begin_elems}});
  }
  json["ranks"] = nlohmann::ordered_json::array();
  for (const ShardView& shard : segment.shards) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const HeldPart& part : shard.parts) {
      parts.push_back({{"tensor", segment.tensors[part.tensor].name},
                       {"begin", part.begin_elems},
                       {"end", part.end_elems}});
    }
    json["ranks"].push_back({{"parts", parts}, {"padding", shard.padding_elems}});
  }
  return json;
}

}  // namespace

std::string partition_text(const Partition& partition) {
  std::string text = fmt::format(
      "{} parameters in {}, sliced over {}; with padding a rank stores {} elements\n",
      grouped_digits(partition.count_elems), counted(partition.units, "unit"),
      counted(partition.ranks, "rank"), grouped_digits(partition.stored_elems / partition.ranks));
  for (const UnitGroup& group : partition.groups) {
    for (const SegmentView& segment : group.first.segments) {
      append_segment(text, group.title(), segment);
    }
  }
  return text;
}

std::string partition_json(const Partition& partition) {
  nlohmann::ordered_json json;
  json["ranks"] = partition.ranks;
  json["layout"] = "slice";
  json["count_elems"] = partition.count_elems;
  json["stored_elems"] = partition.stored_elems;
  json["groups"] = nlohmann::ordered_json::array();
  for (const UnitGroup& group : partition.groups) {
    nlohmann::ordered_json segments = nlohmann::ordered_json::array();
    for (const SegmentView& segment : group.first.segments) segments.push_back(json_of(segment));
    json["groups"].push_back({{"first_unit", group.first.name},
                              {"last_unit", group.last_name},
                              {"units", group.count},
                              {"segments", segments}});
  }
  return json.dump(2) + "\n";
}

}  // namespace strata::tool
