// Initial weights as a pure function of (seed, unit, tensor, element), so that every rank can fill
// its own slice and the model is the same for every number of ranks. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model_config.hpp"

namespace train_gpt {

// Writes elements [offset_elems, offset_elems + out.size()) of the tensor: norms are 1, matrices
// normal with standard deviation 0.02, and the projections into the residual stream (wo, w_down)
// are scaled by 1 / sqrt(2 * layers) (Radford et al., GPT-2 report, section 2.3).
void fill_initial(const GptConfig& config, std::uint64_t seed, std::string_view unit,
                  std::string_view tensor, std::uint64_t offset_elems, std::span<float> out);

}  // namespace train_gpt
