// Byte counts as people write and read them. Values only; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "strata/types.hpp"

namespace strata {

// "64MiB", "1.5 GiB", "512KiB", "2GB", "4096": a decimal number and a unit of B (default), KiB to
// EiB (powers of 1024) or KB to EB (powers of 1000), at most one space between. A fraction of a
// unit is rounded down to whole bytes. Nothing for anything else: signs, exponents, other units,
// fractions of B, more than 19 digits on a side of the point, 2^64 bytes and above.
std::optional<Bytes> parse_bytes(std::string_view text);

// For people: in the largest power of 1024 that fits, with at most two decimals: "0 B", "64 MiB",
// "1.21 GiB". Rounded, so not for reading back.
std::string format_bytes(Bytes size);

// For files: the shortest whole number that parse_bytes reads back: "1536KiB", "4097B".
std::string format_bytes_exact(Bytes size);

}  // namespace strata
