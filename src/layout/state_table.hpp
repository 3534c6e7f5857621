// State kinds: what is stored for every element of a segment. A table, not an enumeration: the
// optimizer and the precision policy decide the rows. Pure.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "strata/element_ops.hpp"
#include "strata/types.hpp"

namespace strata {

using KindId = Id<struct KindTag>;

// Rows that every table begins with.
inline constexpr KindId kParamKind{0};
inline constexpr KindId kGradKind{1};
inline constexpr std::size_t kMaxKinds = 8;

struct StateKind {
  std::string name;
  DType dtype = DType::fp32;
};

struct StateTable {
  std::vector<StateKind> kinds;
  UpdateRule rule = UpdateRule::adamw;
  KindId master;  // the weights that the optimizer updates; kParamKind: the parameters themselves
  KindId first_moment;       // the others follow
  DType wire = DType::bf16;  // dtype of a gradient in collectives
  DType lent = DType::bf16;  // of the trainer's buffer
  // Several reductions may make up one gradient, which then rests in fp32.
  bool accumulates = false;

  const StateKind& operator[](KindId kind) const { return kinds[kind.value]; }
  std::size_t size() const { return kinds.size(); }
  bool has_masters() const { return master != kParamKind; }
  Bytes bytes_per_elem(KindId kind) const { return size_of(kinds[kind.value].dtype); }
};

struct PrecisionPolicy {
  DType param = DType::bf16;
  DType wire = DType::bf16;
  bool wide_gradients = false;  // the trainer's buffer is fp32 whatever goes over the wire
  // The gradient rests in the wire dtype when one reduction completes it, else in fp32.
  bool accumulates = false;
  bool fp32_masters = true;  // beside parameters of 16 bits
  DType moments = DType::fp32;
};

// param, grad[, master], and the moments of the rule.
StateTable make_state_table(UpdateRule rule, const PrecisionPolicy& precision);

}  // namespace strata
