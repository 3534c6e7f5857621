// Order statistics of a few hundred measurements. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace strata::tool {

// The value below which the fraction `p` of the values lies, interpolated linearly between the two
// nearest ones (definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996).
// Pre (asserted): there are values, p in [0, 1].
double percentile(std::span<const double> values, double p);
double median(std::span<const double> values);

// Median and what 80 % of the values lie between.
struct Spread {
  double median = 0;
  double low = 0;   // 10th percentile
  double high = 0;  // 90th
};

inline Spread spread_of(std::span<const double> values) {
  return {median(values), percentile(values, 0.1), percentile(values, 0.9)};
}

struct Interval {
  double low = 0;
  double high = 0;
};

// What the ratio of medians a / b may be, with 95 % confidence: the bootstrap's percentiles (Efron,
// "Bootstrap Methods", 1979). It draws pairs (a[i], b[i]), measured one after the other, so that a
// drift of both does not widen the interval. The same values and seed give the same interval.
// Pre (asserted): as many a as b, at least one.
Interval ratio_interval(std::span<const double> a, std::span<const double> b, std::uint64_t seed);

}  // namespace strata::tool
