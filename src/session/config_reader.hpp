// Reads a configuration from JSON text, strictly: an unknown or repeated key, a wrong type, or text
// that is not JSON is an Error that names the place. Missing keys keep their defaults. Ranges and
// relations between keys are not checked here but need the places, which are handed on.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "session/config_cursor.hpp"
#include "strata/config.hpp"

namespace strata::config {

struct Reading {
  struct Value {
    Place place;
    std::string text;  // as the file has it; empty for objects and arrays
  };
  Config config;
  std::map<std::string, Value, std::less<>> values;  // by path, of all keys that the file has
};

// Throws Error(config) that starts with "<source_name>:<line>:<column>: ".
Reading read(std::string_view text, std::string_view source_name);

// "<source_name>:<line>:<column>: <message>" as an error.
Error error_at(std::string_view source_name, Place place, std::string_view message);

}  // namespace strata::config
