#include "session/config_reader.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "session/config_keys.hpp"
#include "session/config_suggest.hpp"
#include "strata/bytes.hpp"

namespace strata::config {
namespace {

using Scalar = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string>;

// Writes a value of the right type into the member; false for any other type.
struct Assign {
  const Scalar& scalar;

  bool operator()(Bytes* size) const {
    if (const auto* count = std::get_if<std::uint64_t>(&scalar)) {
      *size = Bytes{*count};
      return true;
    }
    const auto* text = std::get_if<std::string>(&scalar);
    const auto parsed = text == nullptr ? std::nullopt : parse_bytes(*text);
    if (parsed) *size = *parsed;
    return parsed.has_value();
  }
  bool operator()(double* value) const {
    if (const auto* number = std::get_if<double>(&scalar)) {
      *value = *number;
    } else if (const auto* natural = std::get_if<std::uint64_t>(&scalar)) {
      *value = static_cast<double>(*natural);
    } else if (const auto* integer = std::get_if<std::int64_t>(&scalar)) {
      *value = static_cast<double>(*integer);
    } else {
      return false;
    }
    return true;
  }
  bool operator()(unsigned* value) const {
    const auto* natural = std::get_if<std::uint64_t>(&scalar);
    if (natural == nullptr || *natural > std::numeric_limits<unsigned>::max()) return false;
    *value = static_cast<unsigned>(*natural);
    return true;
  }
  bool operator()(bool* value) const { return copy_to(value); }
  bool operator()(std::string* value) const { return copy_to(value); }
  // Of lists: adds an element.
  bool operator()(std::vector<std::string>* list) const { return append_to(list); }
  bool operator()(std::vector<double>* list) const { return append_to(list); }
  bool operator()(TierFractions* tiers) const {
    const auto* text = std::get_if<std::string>(&scalar);
    if (text != nullptr && *text == kAutomatic) {
      *tiers = {0, 0, 0, true};
      return true;
    }
    for (const auto& tier : words_of(tiers)) {
      if (text == nullptr || *text != tier.text) continue;
      *tiers = {0, 0, 0};
      fraction_of(*tiers, tier.value) = 1;
      return true;
    }
    return false;
  }
  template <class Enum>
  bool operator()(Enum* value) const {
    const auto* text = std::get_if<std::string>(&scalar);
    for (const auto& word : words_of(value)) {
      if (text == nullptr || *text != word.text) continue;
      *value = word.value;
      return true;
    }
    return false;
  }

 private:
  template <class T>
  bool copy_to(T* value) const {
    const auto* same = std::get_if<T>(&scalar);
    if (same != nullptr) *value = *same;
    return same != nullptr;
  }
  template <class T>
  bool append_to(std::vector<T>* list) const {
    T element{};
    if (!(*this)(&element)) return false;
    list->push_back(element);
    return true;
  }
};

bool is_list(const Field& field) {
  return std::holds_alternative<std::vector<std::string>*>(field) ||
         std::holds_alternative<std::vector<double>*>(field);
}

// The JSON library's report of bad syntax in our words: without its prefix, position and echo.
std::string plain_syntax_error(std::string_view report) {
  constexpr std::string_view kEcho = "; last read: '";
  for (const std::string_view prefix : {"] ", "syntax error "}) {
    const std::size_t at = report.find(prefix);
    if (at != report.npos) report.remove_prefix(at + prefix.size());
  }
  std::string text(report);
  const std::size_t echo = text.find(kEcho);
  if (echo != text.npos) text.erase(echo, text.rfind('\'') + 1 - echo);
  const std::size_t dash = text.find(" - ");
  if (dash != text.npos) text.replace(dash, 3, ": ");
  return excerpt(text, 200);
}

class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(std::string_view text, std::string_view source_name)
      : cursor_(text), source_name_(source_name) {}

  Reading take() && { return std::move(reading_); }

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(value); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override {
    const Token token = cursor_.next();
    if (in_list_) fail_value(token, "an object");
    if (!open_.empty() && !is_section(path_)) {
      const auto field = field_at(reading_.config, path_);
      TierFractions* const* tiers = field ? std::get_if<TierFractions*>(&*field) : nullptr;
      if (tiers == nullptr) fail_value(token, "an object");
      **tiers = {0, 0, 0};
    }
    note_value(token, "");
    open_.push_back(path_);
    return true;
  }

  bool key(string_t& name) override {
    const Token token = cursor_.next();
    const std::string parent = open_.back();
    path_ = join_path(parent, name);
    const bool is_known = name.find('.') == name.npos && !name.empty() &&
                          (is_section(path_) || field_at(reading_.config, path_));
    if (!is_known) fail(token, unknown_key(parent, name));
    if (const auto first = reading_.values.find(path_); first != reading_.values.end()) {
      fail(token, fmt::format("duplicate key \"{}\"; line {} has it already", path_,
                              first->second.place.line));
    }
    return true;
  }

  bool end_object() override {
    cursor_.next();
    open_.pop_back();
    return true;
  }

  bool start_array(std::size_t) override {
    const Token token = cursor_.next();
    const auto field = field_at(reading_.config, path_);
    if (in_list_ || !field || !is_list(*field)) fail_value(token, "an array");
    note_value(token, "");
    in_list_ = true;
    return true;
  }

  bool end_array() override {
    cursor_.next();
    in_list_ = false;
    return true;
  }

  bool parse_error(std::size_t end, const std::string&,
                   const nlohmann::detail::exception& report) override {
    const std::string problem = plain_syntax_error(report.what());
    // A token that is invalid in itself comes next; one that is unexpected ends at `end`.
    const bool is_invalid = problem.find(": invalid ") != problem.npos;
    const Token token = is_invalid ? cursor_.next() : cursor_.next_reaching(end);
    const std::string found = token.text.empty() ? "the end" : excerpt(token.text);
    fail(token, fmt::format("not JSON: {}; found {}", problem, found));
  }

 private:
  bool scalar(const Scalar& value) {
    const Token token = cursor_.next();
    const std::string text = excerpt(token.text);
    const auto field = open_.empty() ? std::nullopt : field_at(reading_.config, path_);
    const bool fits = field && is_list(*field) == in_list_;
    if (!fits || !std::visit(Assign{value}, *field)) fail_value(token, text);
    if (!in_list_) note_value(token, text);
    return true;
  }

  void note_value(const Token& token, std::string text) {
    reading_.values.emplace(path_, Reading::Value{cursor_.place_of(token.begin), std::move(text)});
  }

  static std::string unknown_key(std::string_view parent, std::string_view name) {
    const std::string path = join_path(parent, name);
    const std::string unknown = fmt::format("unknown key \"{}\"; ", excerpt(path));
    if (name.find('.') != name.npos) {
      return unknown + "a name has no dots: write {\"section\": {\"name\": value}}";
    }
    const std::string nearest = nearest_path(path);
    if (!nearest.empty()) return unknown + fmt::format("did you mean \"{}\"?", nearest);
    return unknown + fmt::format("the keys here are {}", fmt::join(names_below(parent), ", "));
  }

  [[noreturn]] void fail(const Token& token, std::string_view message) const {
    throw error_at(source_name_, cursor_.place_of(token.begin), message);
  }

  [[noreturn]] void fail_value(const Token& token, std::string_view found) const {
    const std::string subject = path_.empty() ? "the file" : fmt::format("\"{}\"", path_);
    fail(token, fmt::format("{} must be {}; found {}", subject, expectation_at(path_), found));
  }

  TokenCursor cursor_;
  std::string_view source_name_;
  Reading reading_;
  std::vector<std::string> open_;  // paths of the objects around the cursor
  std::string path_;               // of the key whose value comes next
  bool in_list_ = false;           // the cursor is inside an array
};

}  // namespace

Error error_at(std::string_view source_name, Place place, std::string_view message) {
  return Error(ErrorCode::config, fmt::format("{}:{}:{}: {}", excerpt(source_name), place.line,
                                              place.column, message));
}

Reading read(std::string_view text, std::string_view source_name) {
  constexpr std::string_view kSpacesAndByteOrderMark = " \t\r\n\xEF\xBB\xBF";
  if (text.find_first_not_of(kSpacesAndByteOrderMark) == text.npos) {
    throw error_at(source_name, {},
                   "the file is empty; expected an object, {} takes every default");
  }
  // The JSON library takes a NUL for the end of its input and would ignore what follows.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {
    throw error_at(source_name, TokenCursor(text).place_of(nul),
                   "a NUL byte; expected a text file with one JSON object");
  }
  Reader reader(text, source_name);
  nlohmann::json::sax_parse(text, &reader);
  return std::move(reader).take();
}

}  // namespace strata::config
