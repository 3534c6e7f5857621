#include "model_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "strata/error.hpp"

namespace strata::tool {
namespace {

using nlohmann::json;

// A value and where it stands: "units[1].tensors[0].shape".
class Node {
 public:
  Node(const json& value, std::string path, std::string_view source)
      : value_(value), path_(std::move(path)), source_(source) {}

  [[noreturn]] void fail(std::string_view message) const {
    const std::string place = path_.empty() ? std::string("the file") : path_;
    throw Error(ErrorCode::config, fmt::format("{}: {} {}", source_, place, message));
  }

  // Checks that this is an object with the required keys and no others than the optional ones.
  void require_keys(const std::vector<std::string>& required,
                    const std::vector<std::string>& optional) const {
    if (!value_.is_object()) fail("must be an object");
    for (const std::string& key : required) {
      if (!value_.contains(key)) fail(fmt::format("has no \"{}\"", key));
    }
    std::vector<std::string> known = required;
    known.insert(known.end(), optional.begin(), optional.end());
    for (const auto& item : value_.items()) {
      if (std::ranges::count(known, item.key()) > 0) continue;
      fail(fmt::format("has an unknown key {}; the keys here are {}", json(item.key()).dump(),
                       fmt::join(known, ", ")));
    }
  }

  bool has(const std::string& key) const { return value_.contains(key); }
  Node at(const std::string& key) const {
    return {value_.at(key), path_.empty() ? key : path_ + "." + key, source_};
  }

  std::vector<Node> items() const {
    if (!value_.is_array() || value_.empty()) fail("must be an array that is not empty");
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < value_.size(); ++i) {
      nodes.emplace_back(value_[i], fmt::format("{}[{}]", path_, i), source_);
    }
    return nodes;
  }

  std::string text() const {
    if (!value_.is_string() || value_.get_ref<const std::string&>().empty()) {
      fail("must be a string that is not empty");
    }
    return value_.get<std::string>();
  }

  bool boolean() const {
    if (!value_.is_boolean()) fail("must be true or false");
    return value_.get<bool>();
  }

  std::uint64_t whole(std::uint64_t least, std::uint64_t most) const {
    if (!value_.is_number_unsigned() || value_.get<std::uint64_t>() < least ||
        value_.get<std::uint64_t>() > most) {
      fail(fmt::format("must be a whole number from {} to {}", least, most));
    }
    return value_.get<std::uint64_t>();
  }

 private:
  const json& value_;
  std::string path_;
  std::string_view source_;
};

constexpr std::uint64_t kMost32 = std::numeric_limits<std::uint32_t>::max();

TensorSpec read_tensor(const Node& node) {
  node.require_keys({"name", "shape"}, {"trainable", "group"});
  TensorSpec tensor{.name = node.at("name").text(), .shape = {}};
  for (const Node& extent : node.at("shape").items()) {
    tensor.shape.push_back(extent.whole(1, std::numeric_limits<std::int64_t>::max()));
  }
  if (node.has("trainable")) tensor.trainable = node.at("trainable").boolean();
  if (node.has("group")) {
    tensor.group = static_cast<std::uint32_t>(node.at("group").whole(0, kMost32));
  }
  return tensor;
}

void read_unit(const Node& node, Model& model) {
  node.require_keys({"name", "tensors"}, {"reduces_per_micro_batch"});
  UnitOptions options;
  if (node.has("reduces_per_micro_batch")) {
    options.reduces_per_micro_batch =
        static_cast<std::uint32_t>(node.at("reduces_per_micro_batch").whole(1, kMost32));
  }
  std::vector<TensorSpec> tensors;
  for (const Node& tensor : node.at("tensors").items()) tensors.push_back(read_tensor(tensor));
  try {
    model.add_unit(node.at("name").text(), std::move(tensors), options);
  } catch (const Error& error) {
    node.fail(fmt::format("is impossible: {}", error.what()));
  }
}

// The JSON library keeps the last of repeated keys; this refuses them.
class RepeatedKeys {
 public:
  explicit RepeatedKeys(std::string_view source) : source_(source) {}

  void see(json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event != json::parse_event_t::key) return;
    if (!open_.back().insert(parsed.get<std::string>()).second) {
      throw Error(ErrorCode::config,
                  fmt::format("{}: the key {} stands twice in one object", source_, parsed.dump()));
    }
  }

 private:
  std::string_view source_;
  std::vector<std::set<std::string>> open_;
};

json parse_json(std::string_view text, std::string_view source) {
  RepeatedKeys repeated(source);
  try {
    return json::parse(text, [&](int, json::parse_event_t event, const json& parsed) {
      repeated.see(event, parsed);
      return true;
    });
  } catch (const json::parse_error& error) {
    const std::string_view before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
    const auto line = std::ranges::count(before, '\n') + 1;
    const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    throw Error(ErrorCode::config, fmt::format("{}:{}:{}: not JSON", source, line, column));
  }
}

}  // namespace

Model parse_model(std::string_view text, std::string_view source_name) {
  const json document = parse_json(text, source_name);
  const Node root(document, "", source_name);
  root.require_keys({"units"}, {});
  Model model;
  for (const Node& unit : root.at("units").items()) read_unit(unit, model);
  return model;
}

Model read_model_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw Error(ErrorCode::config, "cannot read the model file", {.errnum = errno, .path = path});
  }
  return parse_model(text, path);
}

}  // namespace strata::tool
