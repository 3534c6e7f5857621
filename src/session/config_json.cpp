#include "session/config_json.hpp"

#include <nlohmann/json.hpp>

#include "strata/bytes.hpp"

namespace strata::config {
namespace {

using Json = nlohmann::ordered_json;

struct ToJson {
  Json operator()(const Bytes* size) const { return format_bytes_exact(*size); }
  Json operator()(TierFractions* tiers) const {
    if (tiers->automatic) return kAutomatic;
    Json object = Json::object();
    for (const auto& tier : words_of(tiers)) {
      TierFractions whole = {0, 0, 0};
      fraction_of(whole, tier.value) = 1;
      if (*tiers == whole) return tier.text;
      object[std::string(tier.text)] = fraction_of(*tiers, tier.value);
    }
    return object;
  }
  Json operator()(const double* value) const { return *value; }
  Json operator()(const unsigned* value) const { return *value; }
  Json operator()(const bool* value) const { return *value; }
  Json operator()(const std::string* value) const { return *value; }
  Json operator()(const std::vector<std::string>* value) const { return *value; }
  Json operator()(const std::vector<double>* value) const { return *value; }
  template <class Enum>
  Json operator()(const Enum* value) const {
    for (const auto& word : words_of(value)) {
      if (word.value == *value) return word.text;
    }
    return nullptr;
  }
};

}  // namespace

Json json_of(const Field& field) { return std::visit(ToJson{}, field); }

}  // namespace strata::config

namespace strata {

std::string Config::to_json() const {
  Config copy = *this;
  auto file = nlohmann::ordered_json::object();
  for (const config::Key& key : config::keys()) {
    const std::size_t dot = key.path.find('.');
    const std::string section(key.path.substr(0, dot));
    const std::string name(key.path.substr(dot + 1));
    file[section][name] = config::json_of(key.field(copy));
  }
  try {
    return file.dump(2) + "\n";
  } catch (const nlohmann::json::type_error&) {
    throw Error(
        ErrorCode::config,
        "a string of the configuration is not UTF-8, which JSON cannot hold; rename the path");
  }
}

}  // namespace strata
