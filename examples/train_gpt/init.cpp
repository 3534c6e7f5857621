#include "init.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "counter_rng.hpp"

namespace train_gpt {
namespace {

constexpr double kStandardDeviation = 0.02;

// Box-Muller: elements 2 * pair and 2 * pair + 1.
std::pair<double, double> normal_pair(std::uint64_t key, std::uint64_t pair) {
  const double radius = std::sqrt(-2 * std::log(counter_rng::uniform(key, 2 * pair)));
  const double angle = 2 * std::numbers::pi * counter_rng::uniform(key, 2 * pair + 1);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

void fill_normal(std::uint64_t key, double deviation, std::uint64_t offset, std::span<float> out) {
  const std::uint64_t end = offset + out.size();
  for (std::uint64_t pair = offset / 2; 2 * pair < end; ++pair) {
    const auto [even, odd] = normal_pair(key, pair);
    if (2 * pair >= offset) out[2 * pair - offset] = static_cast<float>(deviation * even);
    if (2 * pair + 1 < end) out[2 * pair + 1 - offset] = static_cast<float>(deviation * odd);
  }
}

}  // namespace

void fill_initial(const GptConfig& config, std::uint64_t seed, std::string_view unit,
                  std::string_view tensor, std::uint64_t offset_elems, std::span<float> out) {
  if (tensor.ends_with("norm")) {
    std::fill(out.begin(), out.end(), 1.0F);
    return;
  }
  const bool into_residual = tensor == "wo" || tensor == "w_down";
  const double scale = into_residual ? 1 / std::sqrt(2.0 * config.layers) : 1;
  const std::uint64_t key = counter_rng::at(counter_rng::at(seed, unit), tensor);
  fill_normal(key, kStandardDeviation * scale, offset_elems, out);
}

}  // namespace train_gpt
