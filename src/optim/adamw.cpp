#include "optim/adamw.hpp"

#include <algorithm>
#include <cmath>

namespace strata {

AdamWCoefficients adamw_coefficients(const AdamWHyperparameters& h, std::uint64_t updates,
                                     double gradient_factor) {
  const double t = static_cast<double>(updates);
  return {.gradient_factor = static_cast<float>(gradient_factor),
          .beta1 = static_cast<float>(h.beta1),
          .beta2 = static_cast<float>(h.beta2),
          .epsilon = static_cast<float>(h.epsilon),
          .decay_factor = static_cast<float>(1 - h.learning_rate * h.weight_decay),
          .step_size = static_cast<float>(h.learning_rate / (1 - std::pow(h.beta1, t))),
          .second_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(h.beta2, t)))};
}

double clip_factor(double norm, double clip_norm) {
  constexpr double kTorchEpsilon = 1e-6;
  return clip_norm > 0 ? std::min(1.0, clip_norm / (norm + kTorchEpsilon)) : 1.0;
}

}  // namespace strata
