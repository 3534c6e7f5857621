#include "bench_io_results.hpp"

#include <algorithm>
#include <cmath>

namespace strata::tool {
namespace {

constexpr std::uint64_t kBootstrapSeed = 1;

}  // namespace

Ratio ratio_of(const Series& series, const Series& other) {
  return {series.rate() / other.rate(),
          ratio_interval(series.bytes_per_s, other.bytes_per_s, kBootstrapSeed)};
}

std::vector<double> weights_of(const BenchIoResults& results) {
  double most = 0;
  for (const ReadsAndWrites& rates : results.directories) {
    most = std::max(most, rates.combined_rate());
  }
  std::vector<double> weights;
  for (const ReadsAndWrites& rates : results.directories) {
    weights.push_back(std::max(std::round(100 * rates.combined_rate() / most), 1.0) / 100);
  }
  return weights;
}

}  // namespace strata::tool
