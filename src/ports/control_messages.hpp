// What the control planes of all communicators share: the calls that ranks make together, the
// header by which each message says which call it belongs to, and the words for peers that
// diverged or are lost. Values only; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/error.hpp"

namespace strata {

enum class ControlCall : std::uint32_t { exchange, attach, connect, split, close };

std::string_view name_of(ControlCall call);

// The most that one rank passes to one call.
inline constexpr std::size_t kMaxControlBytes = std::size_t{1} << 20;

// Precedes the caller's bytes in every message.
struct ControlHeader {
  std::uint32_t call = 0;      // a ControlCall
  std::uint32_t sequence = 0;  // of the calls of one control plane
  std::uint64_t size_bytes = 0;
};

// A message of rank `rank` to all its peers.
std::vector<std::byte> pack_control(const ControlHeader& header, std::span<const std::byte> mine);

// The bytes that `peer` passed to the call of `mine`, inside `message`. Throws Error(diverged)
// when the message belongs to another call, or is none.
std::span<const std::byte> unpack_control(std::span<const std::byte> message, std::uint32_t peer,
                                          const ControlHeader& mine, std::uint32_t rank);

// "rank 3" or "ranks 1, 2".
std::string name_ranks(const std::vector<std::uint32_t>& ranks);

// Error(rank_lost), if no other code is given, about a peer; `rank` is the one that waited for it
// in `what`.
Error gave_up_error(std::uint32_t peer, std::string_view reason,
                    ErrorCode code = ErrorCode::rank_lost);
Error closed_error(std::uint32_t peer, std::uint32_t rank, std::string_view what);
// Pre: `missing` is not empty.
Error timeout_error(const std::vector<std::uint32_t>& missing, std::uint32_t rank,
                    std::string_view what, std::chrono::milliseconds timeout);

}  // namespace strata
