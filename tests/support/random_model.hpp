// Small models drawn by a seed: a few units of tensors of uneven sizes, some of them frozen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "strata/model.hpp"

namespace strata::test {

class RandomStream {
 public:
  explicit RandomStream(std::uint64_t seed) : seed_(seed) {}
  double uniform() { return rng::uniform(seed_, next_++); }
  // Uniform in [0, bound). Pre: bound > 0.
  std::uint64_t below(std::uint64_t bound) { return rng::at(seed_, next_++) % bound; }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

// `largest_extent` bounds each of one or two extents of a tensor.
inline Model random_model(std::uint64_t seed, std::uint64_t largest_extent = 24) {
  RandomStream random(seed);
  Model model;
  const std::uint64_t units = 1 + random.below(4);
  for (std::uint64_t u = 0; u < units; ++u) {
    std::vector<TensorSpec> tensors;
    const std::uint64_t count = 1 + random.below(5);
    for (std::uint64_t t = 0; t < count; ++t) {
      TensorSpec tensor{.name = "t" + std::to_string(t), .shape = {}};
      tensor.shape.push_back(1 + random.below(largest_extent));
      if (random.below(2) == 0) tensor.shape.push_back(1 + random.below(largest_extent));
      tensor.trainable = random.below(4) != 0;
      tensors.push_back(std::move(tensor));
    }
    model.add_unit("unit" + std::to_string(u), std::move(tensors));
  }
  return model;
}

}  // namespace strata::test
