// The scalars of one step: what UpdateCoefficients holds, from hyperparameters and the number of
// updates. Everything is computed in fp64 and rounded once. Pure.
#pragma once

#include <cstdint>

#include "strata/element_ops.hpp"

namespace strata {

// Of one parameter group. A rule ignores what it has no use for.
struct Hyperparameters {
  double learning_rate = 0;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum = 0;
};

// `updates` counts this one, from 1. `gradient_factor` is gradient_scale x clip factor / loss
// scale.
UpdateCoefficients coefficients_of(UpdateRule rule, const Hyperparameters& hyperparameters,
                                   std::uint64_t updates, double gradient_factor);

// min(1, clip_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 when clip_norm is 0.
double clip_factor(double norm, double clip_norm);

}  // namespace strata
