#include "strata/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "strata/error.hpp"

namespace strata {
namespace {

// So that no size in bytes, of states of all kinds on all ranks, can overflow.
bool fits(const std::vector<std::uint64_t>& shape) {
  std::uint64_t room = std::uint64_t{1} << 48;
  for (const std::uint64_t extent : shape) room /= extent;
  return room > 0;
}

void check_tensors(const std::string& unit, const std::vector<TensorSpec>& tensors) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorCode::invalid_argument, reason, {.unit = unit});
  };
  if (tensors.empty()) refuse("a unit needs at least one tensor");
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    if (!names.insert(tensor.name).second) refuse(fmt::format("tensor {} twice", tensor.name));
    if (tensor.shape.empty() || std::ranges::count(tensor.shape, 0U) > 0) {
      refuse(fmt::format("tensor {} has shape ({}): every extent must be at least 1", tensor.name,
                         fmt::join(tensor.shape, ", ")));
    }
    if (!fits(tensor.shape)) {
      refuse(fmt::format("tensor {} has shape ({}): more than 2^48 elements", tensor.name,
                         fmt::join(tensor.shape, ", ")));
    }
  }
}

}  // namespace

std::uint64_t TensorSpec::count_elems() const {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

UnitId Model::add_unit(std::string name, std::vector<TensorSpec> tensors, UnitOptions options) {
  check_tensors(name, tensors);
  if (std::ranges::any_of(units_, [&](const UnitSpec& unit) { return unit.name == name; })) {
    throw Error(ErrorCode::invalid_argument, "the model already has this unit", {.unit = name});
  }
  if (options.reduces_per_micro_batch == 0) {
    throw Error(ErrorCode::invalid_argument, "reduces_per_micro_batch must be at least 1",
                {.unit = name});
  }
  units_.push_back({std::move(name), std::move(tensors), options});
  return UnitId{static_cast<std::uint32_t>(units_.size() - 1)};
}

TensorId Model::tensor(UnitId unit_id, std::string_view name) const {
  const UnitSpec& spec = unit(unit_id);
  for (std::uint32_t i = 0; i < spec.tensors.size(); ++i) {
    if (spec.tensors[i].name == name) return TensorId{i};
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("no tensor named {}", name),
              {.unit = spec.name});
}

std::uint64_t Model::count_elems() const {
  std::uint64_t count = 0;
  for (const UnitSpec& unit : units_) {
    for (const TensorSpec& tensor : unit.tensors) count += tensor.count_elems();
  }
  return count;
}

}  // namespace strata
