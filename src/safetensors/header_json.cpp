#include "safetensors/header_json.hpp"

#include <fmt/format.h>

#include "safetensors/message_text.hpp"
#include "safetensors/strict_json.hpp"

namespace strata::safetensors {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
// {"name": {"shape": [ ...
constexpr unsigned kMostDepth = 3;

class HeaderEvents final : public StrictJson {
 public:
  explicit HeaderEvents(const std::string& path) : StrictJson(path, kMostDepth) {}
  HeaderText take() && { return std::move(text_); }

 private:
  void on_open(Bracket bracket) override {
    if (depth() == 1) return;  // the header itself, which begins with {
    if (depth() == 2 && bracket == Bracket::object) return;
    const bool is_list = depth() == 3 && !in_metadata_ && bracket == Bracket::array;
    if (!is_list || list() == nullptr) fail_value();
  }

  void on_close() override {
    if (depth() == 1) in_metadata_ = false;
  }

  void on_name(std::string name) override {
    if (depth() == 1) return begin_entry(std::move(name));
    if (in_metadata_) {
      text_.metadata.emplace_back(std::move(name), "");
      return;
    }
    field_ = std::move(name);
    HeaderEntry& entry = text_.entries.back();
    bool* seen = field_ == "dtype"          ? &entry.has_type
                 : field_ == "shape"        ? &entry.has_shape
                 : field_ == "data_offsets" ? &entry.has_offsets
                                            : nullptr;
    if (seen == nullptr) {
      fail(fmt::format("has the field {}, which the format does not have", in_quotes(field_)));
    }
    if (*seen) fail(fmt::format("has {} twice", in_quotes(field_)));
    *seen = true;
  }

  void on_scalar(Scalar value) override {
    if (in_metadata_) {
      auto* text = std::get_if<std::string>(&value);
      if (depth() != 2 || text == nullptr) fail_value();
      text_.metadata.back().second = std::move(*text);
      return;
    }
    if (depth() == 2 && field_ == "dtype") {
      if (auto* type = std::get_if<std::string>(&value)) {
        text_.entries.back().type = std::move(*type);
        return;
      }
    }
    const auto* number = std::get_if<std::uint64_t>(&value);
    if (depth() != 3 || number == nullptr) fail_value();
    list()->push_back(*number);
  }

  void begin_entry(std::string name) {
    if (name == kMetadata) {
      if (had_metadata_) refuse(path(), "the header has __metadata__ twice");
      had_metadata_ = in_metadata_ = true;
      return;
    }
    text_.entries.emplace_back().name = std::move(name);
    field_.clear();
  }

  std::vector<std::uint64_t>* list() {
    HeaderEntry& entry = text_.entries.back();
    if (field_ == "shape") return &entry.shape;
    return field_ == "data_offsets" ? &entry.offsets : nullptr;
  }

  [[noreturn]] void fail_value() const {
    if (in_metadata_) refuse(path(), "__metadata__ is not a map from strings to strings");
    if (field_.empty()) fail("is not an object of dtype, shape and data_offsets");
    if (field_ == "dtype") fail("has a dtype that is not a string");
    fail(fmt::format("has a {} that is not a list of whole numbers below 2^64", field_));
  }

  [[noreturn]] void fail(std::string_view what) const {
    refuse(path(), fmt::format("tensor {} {}", in_quotes(text_.entries.back().name), what));
  }

  HeaderText text_;
  std::string field_;  // of the last entry, whose value comes next
  bool in_metadata_ = false;
  bool had_metadata_ = false;
};

}  // namespace

HeaderText read_header_json(std::string_view json, const std::string& path) {
  HeaderEvents events(path);
  events.parse(json);
  return std::move(events).take();
}

}  // namespace strata::safetensors
