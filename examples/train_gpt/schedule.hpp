// The learning rate of each step: linear warm-up, then half a cosine down to a floor (Loshchilov &
// Hutter, "SGDR", without restarts). A value; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace train_gpt {

struct CosineSchedule {
  double peak = 3e-4;
  double floor = 3e-5;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 1;

  // `step` counts from 0. The first warm-up step already learns (peak / warmup_steps), the last
  // one is at the peak; from total_steps - 1 on the rate is the floor.
  double rate(std::uint64_t step) const {
    if (step < warmup_steps) {
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    }
    if (total_steps <= warmup_steps + 1) return peak;
    const double done = static_cast<double>(step - warmup_steps) /
                        static_cast<double>(total_steps - 1 - warmup_steps);
    const double cosine = std::cos(std::numbers::pi * std::min(done, 1.0));
    return floor + (peak - floor) * 0.5 * (1 + cosine);
  }
};

}  // namespace train_gpt
