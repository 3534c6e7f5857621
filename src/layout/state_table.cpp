#include "layout/state_table.hpp"

namespace strata {

StateTable adamw_state_table(const PrecisionPolicy& precision) {
  StateTable table;
  table.wire = precision.wire;
  table.accumulates = precision.accumulates;
  table.kinds = {{"param", precision.param},
                 {"grad", precision.accumulates ? DType::fp32 : precision.wire}};
  table.master = kParamKind;
  if (precision.param != DType::fp32) {
    table.master = KindId{2};
    table.kinds.push_back({"master", DType::fp32});
  }
  table.kinds.push_back({"moment1", DType::fp32});
  table.kinds.push_back({"moment2", DType::fp32});
  return table;
}

}  // namespace strata
