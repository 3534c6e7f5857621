// Where things stand in a JSON text. The JSON library reports keys and values in the order of the
// text but not their places, so a cursor walks the text beside it, one token per report. It relies
// on the library to have checked what it walks over. Pure, refers to the text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace strata::config {

struct Place {
  std::size_t line = 1;    // from 1
  std::size_t column = 1;  // from 1, in characters (UTF-8 code points)
};

struct Token {
  std::size_t begin = 0;
  std::string_view text;
};

class TokenCursor {
 public:
  explicit TokenCursor(std::string_view text);

  // The next brace, bracket, key or value; empty at the end of the text.
  Token next();

  // The first token, commas and colons included, that ends at `end` or later: the last one that
  // was returned or one after it; empty at the end of the text.
  Token next_reaching(std::size_t end);

  Place place_of(std::size_t offset) const;

 private:
  Token next_of_any_kind();

  std::string_view text_;
  std::size_t start_ = 0;
  std::size_t offset_ = 0;
  Token last_;
};

// The beginning of `text` for a message of one line: control characters become '?'.
std::string excerpt(std::string_view text, std::size_t longest_bytes = 60);

}  // namespace strata::config
