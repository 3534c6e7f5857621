// The one table of configuration keys: path, member, range, default and a sentence of meaning.
// Reading, checking, writing, error messages and docs/config.md all go through it, so a new key is
// one row here and one member of Config. Pure data and functions; any thread.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "strata/config.hpp"

namespace strata::config {

// A pointer to the member that a key stands for; the alternative is the key's type.
using Field =
    std::variant<Bytes*, double*, unsigned*, bool*, std::string*, std::vector<std::string>*,
                 std::vector<double>*, DType*, Config::BudgetScope*, Config::Nonfinite*,
                 Config::IoBackend*, Config::Verify*, Config::DeviceKind*, Config::DeviceAllocator*,
                 Config::Masters*, Config::LossScaleKind*, TierFractions*>;

// The interval of a number or of a size in bytes. Infinite `high`: any finite number.
struct Range {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
};

// What a value must be beyond its type and range, in words that follow "must be a ...".
struct Rule {
  std::string_view text;
  bool (*holds)(const Config&) = nullptr;
};

struct Key {
  std::string_view path;  // "section.name"
  Field (*field)(Config&) = nullptr;
  Range range{};
  Rule rule{};
  std::string_view default_from{};  // the key whose value is taken when this one is absent
  std::string_view doc;
};

struct Section {
  std::string_view name;
  std::string_view doc;
};

// A condition between keys. `path` is the key to blame, `text` follows "must ".
struct Relation {
  std::string_view path;
  std::string_view text;
  bool (*holds)(const Config&) = nullptr;
};

std::span<const Section> sections();
std::span<const Key> keys();
std::span<const Relation> relations();

bool is_section(std::string_view path);
const Key* find_key(std::string_view path);

// The member at `path`: a key, or one tier of a key of fractions ("placement.param.host").
std::optional<Field> field_at(Config& config, std::string_view path);

// Every path that a file may name: sections, keys and the tiers of fractions.
std::vector<std::string> valid_paths();

// "section.name" from its two parts; `parent` may be empty.
std::string join_path(std::string_view parent, std::string_view name);

// The words that an enumeration accepts; empty for other types.
template <class Enum>
struct Word {
  std::string_view text;
  Enum value;
};
std::span<const Word<DType>> words_of(const DType*);
std::span<const Word<Config::BudgetScope>> words_of(const Config::BudgetScope*);
std::span<const Word<Config::Nonfinite>> words_of(const Config::Nonfinite*);
std::span<const Word<Config::IoBackend>> words_of(const Config::IoBackend*);
std::span<const Word<Config::Verify>> words_of(const Config::Verify*);
std::span<const Word<Config::DeviceKind>> words_of(const Config::DeviceKind*);
std::span<const Word<Config::DeviceAllocator>> words_of(const Config::DeviceAllocator*);
std::span<const Word<Config::Masters>> words_of(const Config::Masters*);
std::span<const Word<Config::LossScaleKind>> words_of(const Config::LossScaleKind*);
std::span<const Word<Tier>> words_of(const TierFractions*);

// The word for homes that the budgets decide.
inline constexpr std::string_view kAutomatic = "auto";

double& fraction_of(TierFractions& fractions, Tier tier);

// What a key takes, to follow "must be": `a number from 0 to 1`, `"skip" or "abort"`.
std::string expectation(const Key& key);

// The same for any valid path, so also for sections and the tiers of fractions.
std::string expectation_at(std::string_view path);

// The names that may stand directly below `path`, a section or a key of fractions; "" is the file.
std::vector<std::string_view> names_below(std::string_view path);

// Whether the value of `key` in `config` is inside its range and keeps its rule.
bool is_valid(const Key& key, const Config& config);

}  // namespace strata::config
