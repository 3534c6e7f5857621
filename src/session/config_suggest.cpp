#include "session/config_suggest.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "session/config_keys.hpp"

namespace strata::config {
namespace {

std::string_view leaf_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// Edits between the whole paths, or between the last names and a penalty for the other section.
std::size_t score(std::string_view path, std::string_view candidate) {
  constexpr std::size_t kOtherSection = 2;
  const std::size_t whole = edit_distance(path, candidate);
  const std::size_t leaf = edit_distance(leaf_of(path), leaf_of(candidate));
  return std::min(whole, leaf == 0 ? 1 : leaf + kOtherSection);
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(previous, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, substitute});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

std::string nearest_path(std::string_view path) {
  constexpr std::size_t kLongest = 64;
  if (path.size() > kLongest) return {};
  std::string nearest;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : valid_paths()) {
    const std::size_t distance = score(path, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  // A third of the name misspelt is still the name.
  const std::size_t plausible = std::max<std::size_t>(1, leaf_of(path).size() / 3);
  return least <= plausible ? nearest : std::string{};
}

}  // namespace strata::config
