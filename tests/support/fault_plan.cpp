#include "support/fault_plan.hpp"

#include <fmt/format.h>

#include "base/check.hpp"

namespace strata::test {

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::io_error: return "io error";
    case Fault::no_space: return "no space";
    case Fault::short_transfer: return "short transfer";
    case Fault::torn_write: return "torn write";
    case Fault::lost_write: return "lost write";
    case Fault::misdirected_write: return "misdirected write";
    case Fault::misdirected_read: return "misdirected read";
    case Fault::bit_flip_on_read: return "bit flip on read";
    case Fault::bit_flip_at_rest: return "bit flip at rest";
    case Fault::stale_read: return "stale read";
    case Fault::slow: return "slow";
  }
  return "?";
}

std::string_view name_of(IoOp op) {
  switch (op) {
    case IoOp::read: return "read";
    case IoOp::write: return "write";
    case IoOp::flush: return "flush";
  }
  return "?";
}

bool applies(Fault fault, const IoRequest& request, Bytes file_size, Bytes sector) {
  const bool has_bytes = request.op != IoOp::flush && request.size > Bytes{0};
  const bool writes = has_bytes && request.op == IoOp::write;
  const bool reads = has_bytes && request.op == IoOp::read &&
                     request.offset_bytes + request.size.value <= file_size.value;
  const bool has_other_place = request.size + sector <= file_size;
  switch (fault) {
    case Fault::io_error:
    case Fault::slow: return true;
    case Fault::short_transfer: return writes || reads;
    case Fault::no_space:
    case Fault::torn_write:
    case Fault::lost_write:
    case Fault::bit_flip_at_rest: return writes;
    case Fault::misdirected_write: return writes && has_other_place;
    case Fault::misdirected_read: return reads && has_other_place;
    case Fault::bit_flip_on_read:
    case Fault::stale_read: return reads;
  }
  return false;
}

void FaultPlan::set_probability(Fault fault, double probability) {
  STRATA_ASSERT(probability >= 0 && probability <= 1,
                fmt::format("probability {} of {}", probability, name_of(fault)));
  probability_[static_cast<std::size_t>(fault)] = probability;
}

std::optional<Fault> FaultPlan::next_planned(const IoRequest& request, Bytes file_size,
                                             Bytes sector) {
  std::optional<Fault> chosen;
  std::vector<Planned> kept;
  for (Planned planned : planned_) {
    const bool counts = applies(planned.fault, request, file_size, sector);
    if (counts && planned.remaining == 0 && !chosen) {
      chosen = planned.fault;
      continue;
    }
    if (counts && planned.remaining > 0) --planned.remaining;
    kept.push_back(planned);
  }
  planned_ = std::move(kept);
  return chosen;
}

std::optional<Fault> FaultPlan::next(const IoRequest& request, Bytes file_size, Bytes sector) {
  std::optional<Fault> chosen = next_planned(request, file_size, sector);
  for (std::size_t i = 0; i < kFaultCount; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (probability_[i] == 0 || !applies(fault, request, file_size, sector)) continue;
    const bool drawn = draws_.uniform() < probability_[i];
    if (drawn && !chosen) chosen = fault;
  }
  return chosen;
}

}  // namespace strata::test
