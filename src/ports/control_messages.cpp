#include "ports/control_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"

namespace strata {

std::string_view name_of(ControlCall call) {
  switch (call) {
    case ControlCall::exchange: return "exchange";
    case ControlCall::attach: return "attach";
    case ControlCall::connect: return "connect";
    case ControlCall::split: return "split";
    case ControlCall::close: return "close";
  }
  return "?";
}

std::vector<std::byte> pack_control(const ControlHeader& header, std::span<const std::byte> mine) {
  std::vector<std::byte> message(sizeof(header) + mine.size());
  std::memcpy(message.data(), &header, sizeof(header));
  std::copy(mine.begin(), mine.end(), message.begin() + sizeof(header));
  return message;
}

std::span<const std::byte> unpack_control(std::span<const std::byte> message, std::uint32_t peer,
                                          const ControlHeader& mine, std::uint32_t rank) {
  ControlHeader theirs;
  if (message.size() >= sizeof(theirs)) std::memcpy(&theirs, message.data(), sizeof(theirs));
  if (theirs.call != mine.call || theirs.sequence != mine.sequence ||
      message.size() != sizeof(theirs) + mine.size_bytes) {
    throw Error(ErrorCode::diverged,
                fmt::format("rank {} is in {}() number {} with {} bytes while rank {} is in {}() "
                            "number {} with {} bytes; all ranks must make the same calls",
                            peer, name_of(static_cast<ControlCall>(theirs.call)), theirs.sequence,
                            theirs.size_bytes, rank, name_of(static_cast<ControlCall>(mine.call)),
                            mine.sequence, mine.size_bytes),
                {.rank = Rank{peer}});
  }
  return message.subspan(sizeof(theirs));
}

std::string name_ranks(const std::vector<std::uint32_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

Error gave_up_error(std::uint32_t peer, std::string_view reason, ErrorCode code) {
  return Error(code, fmt::format("rank {} gave up: {}", peer, reason), {.rank = Rank{peer}});
}

Error closed_error(std::uint32_t peer, std::uint32_t rank, std::string_view what) {
  return Error(ErrorCode::rank_lost,
               fmt::format("rank {} closed its communicator while rank {} waited for it in {}; "
                           "look for its last message",
                           peer, rank, what),
               {.rank = Rank{peer}});
}

Error timeout_error(const std::vector<std::uint32_t>& missing, std::uint32_t rank,
                    std::string_view what, std::chrono::milliseconds timeout) {
  STRATA_ASSERT(!missing.empty(), "a wait without a rank to wait for timed out");
  return Error(ErrorCode::rank_lost,
               fmt::format("{} did not arrive in {} within {} ms of rank {}: stopped, hanging, or "
                           "slower than the timeout",
                           name_ranks(missing), what, timeout.count(), rank),
               {.rank = Rank{missing.front()}});
}

}  // namespace strata
