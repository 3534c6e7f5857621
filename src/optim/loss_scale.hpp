// Loss scaling: gradients of fp16 are kept above its smallest numbers by a factor on the loss,
// which the update divides out again. A dynamic scale grows while gradients stay finite and shrinks
// when they do not (Micikevicius et al., "Mixed Precision Training"; the rule with hysteresis is
// that of Megatron-LM and DeepSpeed). All scales are powers of two as long as the settings are, so
// that scaling rounds nothing. Pure.
#pragma once

#include <cstdint>

#include "strata/config.hpp"

namespace strata {

class LossScale {
 public:
  explicit LossScale(const Config::LossScale& settings)
      : settings_(settings), value_(settings.initial), overflows_left_(settings.hysteresis) {}

  // What the loss of the step under way is multiplied by; 1 without scaling.
  double value() const { return scales() ? value_ : 1; }
  bool scales() const { return settings_.kind != Config::LossScaleKind::none; }
  bool dynamic() const { return settings_.kind == Config::LossScaleKind::dynamic; }

  // A step whose gradients were all finite.
  void succeeded();
  // A step that was skipped since some were not. False: the scale is dynamic and at its minimum,
  // so that going on would only skip again.
  bool overflowed();

 private:
  const Config::LossScale settings_;
  double value_;
  std::uint64_t good_steps_ = 0;  // since the scale last changed or a step was skipped
  std::uint32_t overflows_left_;  // until the scale shrinks
};

}  // namespace strata
