#include "session/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "strata/error.hpp"

namespace strata {
namespace {

struct Record {
  std::uint64_t schedule;
  std::uint64_t sequence;
  std::uint64_t detail;
  std::uint32_t kind;
  std::uint32_t unit;
};

std::string describe(const Record& record, const std::function<std::string(UnitId)>& unit_name) {
  const auto kind = static_cast<CallKind>(record.kind);
  const std::string_view name = name_of(kind);
  const bool names_unit = kind == CallKind::gather || kind == CallKind::reduce;
  if (!names_unit) return fmt::format("{}()", name);
  return fmt::format("{}({})", name, unit_name(UnitId{record.unit}));
}

}  // namespace

bool agree_on_call(Communicator& communicator, const CallToAgree& mine, const std::string& pattern,
                   const std::function<std::string(UnitId)>& unit_name) {
  if (communicator.size() == 1) return true;
  const Record record{mine.schedule, mine.sequence, mine.detail,
                      static_cast<std::uint32_t>(mine.call.kind), mine.call.unit.value};
  bool same_schedule = true;
  const auto all = communicator.exchange(std::as_bytes(std::span(&record, 1)));
  for (std::uint32_t r = 0; r < communicator.size(); ++r) {
    Record theirs{};
    std::memcpy(&theirs, all.data() + r * sizeof(Record), sizeof(Record));
    same_schedule &= theirs.schedule == mine.schedule;
    theirs.schedule = mine.schedule;
    if (std::memcmp(&theirs, &record, sizeof(Record)) == 0) continue;
    const std::string own = describe(record, unit_name);
    const std::string other = describe(theirs, unit_name);
    throw Error(
        ErrorCode::diverged,
        fmt::format(
            "ranks diverged at call {} of pattern \"{}\": rank {} calls {}, rank {} "
            "calls {}{}; every rank must make the same calls in the same order",
            mine.sequence, pattern, communicator.rank().value, own, r, other,
            own == other
                ? " with other options, at another position or of a unit that it still holds"
                : ""));
  }
  return same_schedule;
}

void agree_on_success(Communicator& communicator, const Error* mine, const std::string& what) {
  if (communicator.size() == 1) {
    if (mine != nullptr) throw Error(*mine);
    return;
  }
  std::array<char, 512> message{};
  if (mine != nullptr) {
    const std::string_view text = mine->what();
    std::copy_n(text.begin(), std::min(text.size(), message.size() - 1), message.begin());
  }
  const auto all = communicator.exchange(std::as_bytes(std::span(message)));
  if (mine != nullptr) throw Error(*mine);
  for (std::uint32_t r = 0; r < communicator.size(); ++r) {
    const char* theirs = reinterpret_cast<const char*>(all.data()) + r * message.size();
    if (*theirs == '\0') continue;
    throw Error(ErrorCode::rank_lost, fmt::format("rank {} could not {}: {}", r, what, theirs),
                {.rank = Rank{r}});
  }
}

}  // namespace strata
