#include "safetensors/strict_json.hpp"

#include <fmt/format.h>

#include "safetensors/message_text.hpp"

namespace strata::safetensors {

void StrictJson::parse(std::string_view text) {
  if (!text.starts_with('{')) refuse(path_, "the JSON text does not begin with {");
  // The JSON library takes a NUL for the end of its input and would ignore what follows.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {
    refuse(path_, fmt::format("the JSON text has a NUL at byte {}", nul));
  }
  nlohmann::json_sax<nlohmann::json>* events = this;
  nlohmann::json::sax_parse(text, events);
}

bool StrictJson::key(string_t& name) {
  on_name(std::move(name));
  return true;
}

bool StrictJson::parse_error(std::size_t position, const std::string& /*last_token*/,
                             const nlohmann::detail::exception& report) {
  const std::string_view text = report.what();
  const bool encoding = text.find("UTF-8") != text.npos;
  const std::string_view problem = encoding ? "not UTF-8" : "not JSON";
  refuse(path_, fmt::format("the text is {} at byte {}", problem, position));
}

bool StrictJson::take(Scalar value) {
  on_scalar(std::move(value));
  return true;
}

bool StrictJson::open(Bracket bracket) {
  if (++depth_ > most_depth_) refuse(path_, "the JSON text is nested deeper than the format is");
  on_open(bracket);
  return true;
}

bool StrictJson::close() {
  --depth_;
  on_close();
  return true;
}

}  // namespace strata::safetensors
