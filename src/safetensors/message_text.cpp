#include "safetensors/message_text.hpp"

#include <fmt/format.h>

#include <vector>

#include "strata/safetensors.hpp"

namespace strata::safetensors {
namespace {

// Bytes of UTF-8 that continue a character.
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 100;
  constexpr std::size_t kHead = 60;
  constexpr std::size_t kTail = 30;
  if (text.size() <= kMost) return fmt::format("\"{}\"", escaped(text));
  std::size_t head = kHead;
  while (head > 0 && continues(text[head])) --head;
  std::size_t tail = text.size() - kTail;
  while (tail < text.size() && continues(text[tail])) ++tail;
  return fmt::format("\"{}...{}\"", escaped(text.substr(0, head)), escaped(text.substr(tail)));
}

void refuse(const std::string& path, std::string_view what) {
  throw Error(ErrorCode::corrupt, fmt::format("{}; fetch or save the file again", what),
              {.path = path});
}

std::string listed(std::span<const std::string> names) {
  constexpr std::size_t kMost = 5;
  const std::size_t shown = names.size() <= kMost + 1 ? names.size() : kMost;
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == names.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + in_quotes(names[i]);
  }
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace strata::safetensors
