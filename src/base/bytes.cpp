#include "strata/bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace strata {
namespace {

__extension__ using Wide = unsigned __int128;

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::array<Unit, 7> kBinaryUnits = {{{"B", 1},
                                               {"KiB", 1ULL << 10},
                                               {"MiB", 1ULL << 20},
                                               {"GiB", 1ULL << 30},
                                               {"TiB", 1ULL << 40},
                                               {"PiB", 1ULL << 50},
                                               {"EiB", 1ULL << 60}}};

constexpr std::array<Unit, 6> kDecimalUnits = {{{"KB", 1'000},
                                                {"MB", 1'000'000},
                                                {"GB", 1'000'000'000},
                                                {"TB", 1'000'000'000'000},
                                                {"PB", 1'000'000'000'000'000},
                                                {"EB", 1'000'000'000'000'000'000}}};

std::optional<std::uint64_t> bytes_of_unit(std::string_view name) {
  const auto named = [name](const Unit& unit) { return unit.name == name; };
  const auto* binary = std::find_if(kBinaryUnits.begin(), kBinaryUnits.end(), named);
  if (binary != kBinaryUnits.end()) return binary->bytes;
  const auto* decimal = std::find_if(kDecimalUnits.begin(), kDecimalUnits.end(), named);
  if (decimal != kDecimalUnits.end()) return decimal->bytes;
  return std::nullopt;
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes the leading digits off `text`.
std::string_view take_digits(std::string_view& text) {
  const auto* end = std::find_if_not(text.begin(), text.end(), is_digit);
  const auto count = static_cast<std::size_t>(end - text.begin());
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

// As many digits as a 64-bit number surely holds.
constexpr std::size_t kMostDigits = std::numeric_limits<std::uint64_t>::digits10;

std::optional<std::uint64_t> value_of(std::string_view digits) {
  if (digits.size() > kMostDigits) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : digits) value = value * 10 + static_cast<std::uint64_t>(c - '0');
  return value;
}

}  // namespace

std::optional<Bytes> parse_bytes(std::string_view text) {
  const std::string_view whole_digits = take_digits(text);
  if (whole_digits.empty()) return std::nullopt;
  const bool has_fraction = text.starts_with('.');
  if (has_fraction) text.remove_prefix(1);
  const std::string_view fraction_digits = has_fraction ? take_digits(text) : std::string_view{};
  if (has_fraction && fraction_digits.empty()) return std::nullopt;
  if (text.size() > 1 && text.front() == ' ') text.remove_prefix(1);

  const auto unit = bytes_of_unit(text.empty() ? "B" : text);
  const auto whole = value_of(whole_digits);
  const auto fraction = value_of(fraction_digits);
  if (!unit || !whole || !fraction) return std::nullopt;
  if (has_fraction && *unit == 1) return std::nullopt;

  Wide scale = 1;
  for (std::size_t i = 0; i < fraction_digits.size(); ++i) scale *= 10;
  const Wide total =
      static_cast<Wide>(*whole) * *unit + static_cast<Wide>(*fraction) * *unit / scale;
  if (total > std::numeric_limits<std::uint64_t>::max()) return std::nullopt;
  return Bytes{static_cast<std::uint64_t>(total)};
}

std::string format_bytes(Bytes size) {
  for (std::size_t i = kBinaryUnits.size() - 1; i > 0; --i) {
    const std::uint64_t unit = kBinaryUnits[i].bytes;
    // Half a hundredth of the smaller unit below this one would round to "1024" of the smaller.
    if (size.value < unit - kBinaryUnits[i - 1].bytes / 200) continue;
    const auto hundredths = static_cast<std::uint64_t>((Wide{size.value} * 100 + unit / 2) / unit);
    std::string number = fmt::format("{}.{:02}", hundredths / 100, hundredths % 100);
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
    return fmt::format("{} {}", number, kBinaryUnits[i].name);
  }
  return fmt::format("{} B", size.value);
}

std::string format_bytes_exact(Bytes size) {
  std::size_t i = size.value == 0 ? 0 : kBinaryUnits.size() - 1;
  while (size.value % kBinaryUnits[i].bytes != 0) --i;
  return fmt::format("{}{}", size.value / kBinaryUnits[i].bytes, kBinaryUnits[i].name);
}

}  // namespace strata
