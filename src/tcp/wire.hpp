// What the ranks of a TCP mesh send to each other, byte for byte. Both ends run the same build on
// the same kind of machine, which the magic numbers and the version check: structs travel as they
// are. Values only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/process_identity.hpp"
#include "ports/control_messages.hpp"

namespace strata::tcp {

inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::uint64_t kContactMagic = 0x31434154'41525453;  // "STRATAC1" in memory
inline constexpr std::uint64_t kReplyMagic = 0x31524154'41525453;    // "STRATAR1"
inline constexpr std::uint64_t kHelloMagic = 0x31484154'41525453;    // "STRATAH1"
inline constexpr std::uint32_t kFrameMagic = 0x46525453;             // "STRF"
inline constexpr std::uint32_t kPayloadMagic = 0x50525453;           // "STRP"

// Tells one launch from another.
using Token = std::array<std::uint64_t, 2>;

// IPv6, or an IPv4 address mapped into it; all zeros: the address of rank 0.
using WireAddress = std::array<std::uint8_t, 16>;

inline constexpr std::uint32_t kUnknownHostRank = 0xFFFFFFFF;
inline constexpr std::size_t kMaxAddresses = 8;

// How to reach a rank, and who it is.
struct Contact {
  std::uint64_t magic = kContactMagic;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t host_rank = kUnknownHostRank;  // as the launcher says
  Token token{};                               // drawn by this rank; rank 0's names the launch
  ProcessIdentity process;
  char host_name[64] = {};
  std::uint16_t port = 0;  // that it listens on
  std::uint16_t address_count = 0;
  std::uint32_t reserved = 0;
  std::array<WireAddress, kMaxAddresses> addresses{};  // the likeliest first
};

// Rank 0's answer to a contact, before `size_bytes` of payload: all contacts, or a message.
struct Reply {
  std::uint64_t magic = kReplyMagic;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t failed = 0;  // 1: the payload is the message of an error
  std::uint32_t code = 0;    // of the error, an ErrorCode
  std::uint32_t reserved = 0;
  std::uint64_t size_bytes = 0;
};

inline constexpr std::size_t kMaxReplyText = 4096;

// The first bytes on a connection of a mesh, from the rank that dials, and the same back from the
// one that accepts.
struct Hello {
  std::uint64_t magic = kHelloMagic;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t reserved = 0;
  Token token{};
  std::uint64_t channel = 0;  // tells the meshes of one launch apart
};

enum class FrameKind : std::uint32_t {
  call = 1,      // a control message: ControlHeader and bytes
  give_up = 2,   // Notice and text
  good_bye = 3,  // no more from this rank in this group
  ask = 4,       // Question
  answer = 5,    // Answer
  leave = 6,     // no more from this rank in any group
};

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint32_t kind = 0;
  std::uint64_t group = 0;
  std::uint64_t size_bytes = 0;
};

inline constexpr std::size_t kMaxFrameBytes = sizeof(ControlHeader) + kMaxControlBytes;

struct Notice {
  std::uint32_t code = 0;  // an ErrorCode
};

inline constexpr std::size_t kMaxNoticeText = 2048;

struct Question {
  std::uint64_t number = 0;
};

struct Answer {
  std::uint64_t number = 0;
  std::uint64_t progress = 0;
};

// Precedes what one rank sends to another in one collective.
struct PayloadHeader {
  std::uint32_t magic = kPayloadMagic;
  std::uint32_t op = 0;  // a CollectiveOp
  std::uint64_t sequence = 0;
  std::uint64_t size_bytes = 0;
};

template <class Value>
std::span<const std::byte> bytes_of(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace strata::tcp
