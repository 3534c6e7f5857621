#include "optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace strata {

UpdateCoefficients coefficients_of(UpdateRule rule, const Hyperparameters& h, std::uint64_t updates,
                                   double gradient_factor) {
  const bool adam = rule == UpdateRule::adamw || rule == UpdateRule::adam;
  const bool decoupled = rule == UpdateRule::adamw || rule == UpdateRule::lion;
  const double t = static_cast<double>(updates);
  const double correction1 = adam ? 1 - std::pow(h.beta1, t) : 1;
  const double correction2 = adam ? 1 - std::pow(h.beta2, t) : 1;
  const double decay = decoupled ? h.learning_rate * h.weight_decay : h.weight_decay;
  return {.factor = static_cast<float>(gradient_factor),
          .decay = static_cast<float>(decay),
          .blend1 = static_cast<float>(1 - h.beta1),
          .blend2 = static_cast<float>(1 - h.beta2),
          .momentum = static_cast<float>(h.momentum),
          .epsilon = static_cast<float>(h.epsilon),
          .step = static_cast<float>(h.learning_rate / correction1),
          .second_scale = static_cast<float>(1 / std::sqrt(correction2))};
}

double clip_factor(double norm, double clip_norm) {
  constexpr double kTorchEpsilon = 1e-6;
  return clip_norm > 0 ? std::min(1.0, clip_norm / (norm + kTorchEpsilon)) : 1.0;
}

}  // namespace strata
