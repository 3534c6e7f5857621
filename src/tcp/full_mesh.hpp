// Connects every rank with every other: of each pair one dials and the other accepts, and both
// make sure that they reached whom they meant, whatever else listens and connects on the hosts.
// Thread: any; nothing is kept between calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tcp/sockets.hpp"
#include "tcp/wire.hpp"

namespace strata::tcp {

// The other end of one connection.
struct MeshPeer {
  bool dials_us = false;                 // else we dial it
  std::vector<Tcp::endpoint> endpoints;  // where to dial it, the likeliest first
  std::string who;                       // "pid 123 on host-a"
};

struct MeshPlan {
  std::uint32_t rank = 0;
  std::vector<MeshPeer> peers;  // by rank; ours is not used
  Token token{};
  std::uint64_t channel = 0;  // the same on all ranks, and of no other mesh of the launch
};

// The connections by rank, none for this rank: file descriptors that the caller owns, or -1.
// Every rank dials ranks that listen already, so that nobody waits in a circle. Throws
// Error(rank_lost) when the patience ends. Blocks.
std::vector<int> connect_mesh(const MeshPlan& plan, asio::io_context& io, Tcp::acceptor& acceptor,
                              const Patience& patience);

}  // namespace strata::tcp
