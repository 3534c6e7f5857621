#include "safetensors/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "safetensors/message_text.hpp"
#include "safetensors/strict_json.hpp"

namespace strata::safetensors {
namespace {

// What tools add to "metadata" is theirs; it is skipped.
constexpr unsigned kMostDepth = 16;

bool is_file_name(std::string_view name) {
  constexpr std::string_view kEnding = ".safetensors";
  constexpr std::size_t kMostBytes = 255;  // of a name in a directory
  const auto is_path_or_control = [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  };
  return name.size() > kEnding.size() && name.size() <= kMostBytes && name.ends_with(kEnding) &&
         !name.starts_with('.') && std::ranges::none_of(name, is_path_or_control);
}

class IndexEvents final : public StrictJson {
 public:
  explicit IndexEvents(const std::string& path) : StrictJson(path, kMostDepth) {}

  Index take() && {
    if (!had_map_) refuse(path(), "the index has no weight_map");
    std::ranges::sort(index_.entries, {}, &IndexEntry::tensor);
    const auto twice = std::ranges::adjacent_find(index_.entries, {}, &IndexEntry::tensor);
    if (twice != index_.entries.end()) {
      refuse(path(), fmt::format("the index has tensor {} twice", in_quotes(twice->tensor)));
    }
    number_files();
    return std::move(index_);
  }

 private:
  void on_open(Bracket bracket) override {
    if (depth() == 1) return;
    if (in_map_ && (depth() > 2 || bracket == Bracket::array)) fail_map();
  }

  void on_close() override {
    if (depth() == 1) in_map_ = false;
  }

  void on_name(std::string name) override {
    if (depth() == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && had_map_) refuse(path(), "the index has weight_map twice");
      had_map_ = had_map_ || in_map_;
    } else if (in_map_) {
      index_.entries.push_back({std::move(name), 0});
    }
  }

  void on_scalar(Scalar value) override {
    if (!in_map_) return;
    const auto* file = std::get_if<std::string>(&value);
    if (depth() != 2 || file == nullptr) fail_map();
    if (!is_file_name(*file)) {
      throw Error(ErrorCode::config,
                  fmt::format("the index puts tensor {} into {}, which is no name of a "
                              ".safetensors file in its directory; correct the index",
                              in_quotes(index_.entries.back().tensor), in_quotes(*file)),
                  {.path = path()});
    }
    const auto next = static_cast<std::uint32_t>(numbers_.size());
    index_.entries.back().file = numbers_.try_emplace(*file, next).first->second;
  }

  [[noreturn]] void fail_map() const {
    refuse(path(), "the index's weight_map is not a map from tensors to files");
  }

  // From the order in which files came to the order of their names.
  void number_files() {
    std::vector<std::uint32_t> renumbered(numbers_.size());
    for (const auto& [name, number] : numbers_) {
      renumbered[number] = static_cast<std::uint32_t>(index_.files.size());
      index_.files.push_back(name);
    }
    for (IndexEntry& entry : index_.entries) entry.file = renumbered[entry.file];
  }

  Index index_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
  bool in_map_ = false;
  bool had_map_ = false;
};

}  // namespace

Index parse_index(std::string_view json, const std::string& path) {
  IndexEvents events(path);
  events.parse(json);
  return std::move(events).take();
}

std::string index_json(std::span<const IndexLine> lines, std::uint64_t total_bytes,
                       std::uint64_t total_elems) {
  std::map<std::string_view, std::string_view> map;
  for (const IndexLine& line : lines) map.emplace(line.tensor, line.file);
  nlohmann::ordered_json json;
  json["metadata"] = {{"total_parameters", total_elems}, {"total_size", total_bytes}};
  json["weight_map"] = map;
  return json.dump(2) + "\n";
}

}  // namespace strata::safetensors
