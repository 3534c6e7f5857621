// The model as Strata sees it: units of named tensors. A unit is what is gathered together,
// usually one transformer block. The model holds descriptions only, never weights.
// Thread: build it on one thread; const use from any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "strata/types.hpp"

namespace strata {

struct TensorSpec {
  std::string name;                  // unique inside its unit
  std::vector<std::uint64_t> shape;  // row-major; every extent >= 1
  bool trainable = true;             // a frozen tensor has no gradient and no optimizer state
  std::uint32_t group = 0;           // parameter group: index into StepOptions::groups

  std::uint64_t count_elems() const;
};

struct UnitOptions {
  // How often one micro-batch reduces this unit's gradients: 2 for an embedding that is tied to
  // the output head and reduced after each use.
  std::uint32_t reduces_per_micro_batch = 1;
};

struct UnitSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  UnitOptions options;
};

class Model {
 public:
  // Adds a unit; units are numbered in the order of the calls. Throws Error(invalid_argument) on an
  // empty unit, a repeated name, an empty or zero extent or a tensor of more than 2^48 elements.
  UnitId add_unit(std::string name, std::vector<TensorSpec> tensors, UnitOptions options = {});

  const std::vector<UnitSpec>& units() const { return units_; }
  const UnitSpec& unit(UnitId id) const { return units_.at(id.value); }
  // Throws Error(invalid_argument) naming the unit when it has no such tensor.
  TensorId tensor(UnitId unit, std::string_view name) const;

  std::uint64_t count_elems() const;  // parameters, padding excluded

 private:
  std::vector<UnitSpec> units_;
};

}  // namespace strata
