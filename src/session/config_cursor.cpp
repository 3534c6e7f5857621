#include "session/config_cursor.hpp"

#include <algorithm>

namespace strata::config {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kStructure = "{}[],:";
constexpr std::string_view kEndsWord = " \t\r\n{}[],:\"";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }
bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// One past the closing quote of the string that begins at `begin`.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  for (std::size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

std::size_t end_of_token(std::string_view text, std::size_t begin) {
  if (text[begin] == '"') return end_of_string(text, begin);
  if (kStructure.find(text[begin]) != kStructure.npos) return begin + 1;
  return std::min(text.find_first_of(kEndsWord, begin), text.size());
}

}  // namespace

TokenCursor::TokenCursor(std::string_view text)
    : text_(text),
      start_(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0),
      offset_(start_) {}

Token TokenCursor::next_of_any_kind() {
  const std::size_t begin = std::min(text_.find_first_not_of(kSpaces, offset_), text_.size());
  offset_ = begin == text_.size() ? begin : end_of_token(text_, begin);
  last_ = {begin, text_.substr(begin, offset_ - begin)};
  return last_;
}

Token TokenCursor::next() {
  Token token = next_of_any_kind();
  while (token.text == "," || token.text == ":") token = next_of_any_kind();
  return token;
}

Token TokenCursor::next_reaching(std::size_t end) {
  while (offset_ < end && offset_ < text_.size()) next_of_any_kind();
  return offset_ < end ? Token{text_.size(), {}} : last_;
}

Place TokenCursor::place_of(std::size_t offset) const {
  Place place;
  for (const char c : text_.substr(start_, std::max(offset, start_) - start_)) {
    if (c == '\n') {
      ++place.line;
      place.column = 1;
    } else if (!is_continuation(c)) {
      ++place.column;
    }
  }
  return place;
}

std::string excerpt(std::string_view text, std::size_t longest_bytes) {
  std::size_t length = std::min(text.size(), longest_bytes);
  while (length > 0 && length < text.size() && is_continuation(text[length])) --length;
  std::string line(text.substr(0, length));
  std::replace_if(line.begin(), line.end(), is_control, '?');
  return length < text.size() ? line + "..." : line;
}

}  // namespace strata::config
