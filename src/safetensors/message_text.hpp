// Texts of messages about files that anybody may have written: whatever a name holds, the message
// stays one line of bounded length. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "strata/error.hpp"

namespace strata::safetensors {

// In quotes, control characters as \xNN, the middle of a long text left out.
std::string in_quotes(std::string_view text);

// Throws Error(corrupt): "<what>; fetch or save the file again (path <path>)".
[[noreturn]] void refuse(const std::string& path, std::string_view what);

}  // namespace strata::safetensors
