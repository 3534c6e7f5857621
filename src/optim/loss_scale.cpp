#include "optim/loss_scale.hpp"

#include <algorithm>
#include <cmath>

namespace strata {

void LossScale::succeeded() {
  if (!dynamic()) return;
  if (++good_steps_ < settings_.growth_interval) return;
  good_steps_ = 0;
  overflows_left_ = settings_.hysteresis;
  const double grown = value_ * settings_.growth;
  // Beyond this the scale itself would overflow the scaled loss.
  if (grown <= 0x1p126) value_ = grown;
}

bool LossScale::overflowed() {
  if (!dynamic()) return true;
  good_steps_ = 0;
  if (overflows_left_ > 1) {
    --overflows_left_;
    return true;
  }
  if (value_ <= settings_.minimum) return false;
  value_ = std::max(value_ * settings_.backoff, settings_.minimum);
  return true;
}

}  // namespace strata
