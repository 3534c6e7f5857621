#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.hpp"
#include "base/rng.hpp"

namespace strata::tool {
namespace {

constexpr std::size_t kResamples = 2000;

double percentile_of_sorted(std::span<const double> sorted, double p) {
  const double position = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(position));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

double percentile(std::span<const double> values, double p) {
  STRATA_ASSERT(!values.empty() && p >= 0 && p <= 1, "a percentile of nothing");
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  return percentile_of_sorted(sorted, p);
}

double median(std::span<const double> values) { return percentile(values, 0.5); }

Interval ratio_interval(std::span<const double> a, std::span<const double> b, std::uint64_t seed) {
  STRATA_ASSERT(!a.empty() && a.size() == b.size(), "a ratio of unpaired values");
  std::vector<double> drawn_a(a.size());
  std::vector<double> drawn_b(b.size());
  std::vector<double> ratios(kResamples);
  std::uint64_t draws = 0;
  for (double& ratio : ratios) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::size_t pair = rng::at(seed, draws++) % a.size();
      drawn_a[i] = a[pair];
      drawn_b[i] = b[pair];
    }
    ratio = median(drawn_a) / median(drawn_b);
  }
  std::ranges::sort(ratios);
  return {percentile_of_sorted(ratios, 0.025), percentile_of_sorted(ratios, 0.975)};
}

}  // namespace strata::tool
