// How the ranks of a launch find each other: all tell rank 0, which waits at MASTER_ADDR and
// MASTER_PORT, how to reach them, and get the contacts of all; or they exchange their contacts by
// an all-gather of the caller's. Every error is the same text on all ranks that arrived.
// Thread: any; nothing is kept between calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tcp/launch.hpp"
#include "tcp/sockets.hpp"
#include "tcp/wire.hpp"

namespace strata::tcp {

// This process as rank `rank` of `size`, which listens at `port`.
Contact introduce(std::uint32_t rank, std::uint32_t size, std::optional<std::uint32_t> host_rank,
                  std::uint16_t port);

// The contacts of all ranks. Throw Error(config) when the ranks were started with different ideas
// of the launch, Error(rank_lost) when one did not come. Block.
std::vector<Contact> meet(const Launch& launch, const Contact& mine,
                          std::chrono::milliseconds timeout);
std::vector<Contact> meet(const AllGather& all_gather, const Contact& mine);

// "pid 123 on host-a".
std::string describe(const Contact& contact);
// Whether two ranks run on one host.
bool on_one_host(const Contact& a, const Contact& b);
// Where to reach `contact` from this process of `mine`, the likeliest first.
std::vector<Tcp::endpoint> endpoints_of(const Contact& contact, const Contact& mine);

}  // namespace strata::tcp
