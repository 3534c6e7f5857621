#include "layout/state_table.hpp"

namespace strata {
namespace {

// As the field calls what a rule's first moment holds.
const char* first_moment_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::momentum:
    case UpdateRule::nesterov: return "momentum";
    case UpdateRule::adagrad: return "sum_of_squares";
    default: return "moment1";
  }
}

}  // namespace

StateTable make_state_table(UpdateRule rule, const PrecisionPolicy& precision) {
  StateTable table;
  table.rule = rule;
  table.wire = precision.wire;
  table.lent = precision.wide_gradients ? DType::fp32 : precision.wire;
  table.accumulates = precision.accumulates;
  table.kinds = {{"param", precision.param},
                 {"grad", precision.accumulates ? DType::fp32 : precision.wire}};
  table.master = kParamKind;
  if (precision.param != DType::fp32 && precision.fp32_masters) {
    table.master = KindId{2};
    table.kinds.push_back({"master", DType::fp32});
  }
  table.first_moment = KindId{static_cast<std::uint32_t>(table.kinds.size())};
  const std::size_t moments = moments_of(rule);
  if (moments > 0) table.kinds.push_back({first_moment_of(rule), precision.moments});
  if (moments > 1) table.kinds.push_back({"moment2", precision.moments});
  return table;
}

}  // namespace strata
