// What a key takes, in words and as a predicate: the two must agree, so they stand side by side.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "session/config_keys.hpp"
#include "strata/bytes.hpp"

namespace strata::config {
namespace {

template <class Enum>
std::string alternatives(std::span<const Word<Enum>> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += fmt::format("\"{}\"", words[i].text);
  }
  return text;
}

std::string interval(const Range& range) {
  if (std::isinf(range.high)) return fmt::format("of at least {}", range.low);
  if (range.low_excluded) return fmt::format("above {} and at most {}", range.low, range.high);
  return fmt::format("from {} to {}", range.low, range.high);
}

std::string size_interval(const Range& range) {
  return fmt::format("from {} to {}", format_bytes(Bytes{static_cast<std::uint64_t>(range.low)}),
                     format_bytes(Bytes{static_cast<std::uint64_t>(range.high)}));
}

struct Expectation {
  const Range& range;

  std::string operator()(const Bytes*) const {
    return fmt::format("a size such as \"64MiB\" {}", size_interval(range));
  }
  std::string operator()(const double*) const { return "a number " + interval(range); }
  std::string operator()(const unsigned*) const { return "a whole number " + interval(range); }
  std::string operator()(const bool*) const { return "true or false"; }
  std::string operator()(const std::string*) const { return "a string"; }
  std::string operator()(const std::vector<std::string>*) const { return "an array of strings"; }
  std::string operator()(const std::vector<double>*) const {
    return "an array of numbers " + interval(range);
  }
  std::string operator()(const TierFractions* tiers) const {
    return alternatives(words_of(tiers)) +
           ", or an object of fractions from 0 to 1 whose sum is 1 such as "
           "{\"host\": 0.25, \"nvme\": 0.75}";
  }
  template <class Enum>
  std::string operator()(const Enum* value) const {
    return alternatives(words_of(value));
  }
};

// NaN is in no range.
bool is_inside(double value, const Range& range) {
  const bool above_low = range.low_excluded ? value > range.low : value >= range.low;
  return above_low && value <= range.high && std::isfinite(value);
}

struct Inside {
  const Range& range;

  bool operator()(const Bytes* size) const {
    return is_inside(static_cast<double>(size->value), range);
  }
  bool operator()(const double* value) const { return is_inside(*value, range); }
  bool operator()(const unsigned* value) const { return is_inside(*value, range); }
  bool operator()(const bool*) const { return true; }
  bool operator()(const std::string*) const { return true; }
  bool operator()(const std::vector<std::string>*) const { return true; }
  bool operator()(const std::vector<double>* values) const {
    return std::all_of(values->begin(), values->end(),
                       [this](double value) { return is_inside(value, range); });
  }
  bool operator()(const TierFractions* tiers) const {
    if (tiers->automatic) return *tiers == TierFractions{0, 0, 0, true};
    constexpr Range kFraction = {0, 1};
    constexpr double kTolerance = 1e-9;
    return is_inside(tiers->device, kFraction) && is_inside(tiers->host, kFraction) &&
           is_inside(tiers->nvme, kFraction) &&
           std::abs(tiers->device + tiers->host + tiers->nvme - 1) <= kTolerance;
  }
  template <class Enum>
  bool operator()(const Enum* value) const {
    for (const auto& word : words_of(value)) {
      if (word.value == *value) return true;
    }
    return false;
  }
};

}  // namespace

std::string expectation(const Key& key) {
  Config scratch;
  std::string text = std::visit(Expectation{key.range}, key.field(scratch));
  if (!key.rule.text.empty()) text.append(" ").append(key.rule.text);
  return text;
}

std::string expectation_at(std::string_view path) {
  if (const Key* key = find_key(path)) return expectation(*key);
  if (path.empty() || is_section(path)) {
    return fmt::format("an object of the keys {}", fmt::join(names_below(path), ", "));
  }
  return "a number from 0 to 1";
}

bool is_valid(const Key& key, const Config& config) {
  Config copy = config;
  if (!std::visit(Inside{key.range}, key.field(copy))) return false;
  return key.rule.holds == nullptr || key.rule.holds(config);
}

}  // namespace strata::config
