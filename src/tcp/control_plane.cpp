#include "tcp/control_plane.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "tcp/full_mesh.hpp"
#include "tcp/group.hpp"
#include "tcp/mesh.hpp"
#include "tcp/rendezvous.hpp"

namespace strata::tcp {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kWholeLaunch = 1;

// The same on all ranks, and of no other (group, call): both are equal on all ranks of the group.
// The finaliser of splitmix64 (Vigna, 2015), a bijection, keeps short paths apart.
std::uint64_t derived_id(std::uint64_t group, std::uint32_t sequence) {
  std::uint64_t bits = group * 0x9E3779B97F4A7C15 + sequence + 1;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

// What all ranks of a launch have in common once they know each other.
struct Joined {
  std::shared_ptr<Mesh> mesh;
  std::shared_ptr<Group> group;
};

Joined join(std::vector<Contact> contacts, std::uint32_t rank, asio::io_context& io,
            Tcp::acceptor& acceptor, milliseconds timeout) {
  MeshPlan plan;
  plan.rank = rank;
  plan.token = contacts.front().token;
  for (std::uint32_t peer = 0; peer < contacts.size(); ++peer) {
    plan.peers.push_back({.dials_us = peer > rank,
                          .endpoints = endpoints_of(contacts[peer], contacts[rank]),
                          .who = describe(contacts[peer])});
  }
  const std::vector<int> sockets = connect_mesh(plan, io, acceptor, Patience(timeout));
  std::vector<std::uint32_t> everybody(contacts.size());
  std::iota(everybody.begin(), everybody.end(), 0U);
  Joined joined;
  joined.mesh = std::make_shared<Mesh>(rank, std::move(contacts), sockets);
  joined.group = joined.mesh->open_group(kWholeLaunch, std::move(everybody));
  return joined;
}

std::uint16_t port_in(std::span<const std::byte> ports, std::uint32_t rank) {
  std::uint16_t port = 0;
  std::memcpy(&port, ports.data() + rank * sizeof(port), sizeof(port));
  return port;
}

// The members of one host as a launcher numbers them, or else in the order of the group.
std::vector<std::uint32_t> members_on_host(const Mesh& mesh, const Group& group) {
  const auto host_rank = [&](std::uint32_t rank) {
    return mesh.contacts()[group.members()[rank]].host_rank;
  };
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (on_one_host(mesh.contacts()[group.members()[rank]], mesh.contacts()[mesh.rank()])) {
      ranks.push_back(rank);
    }
  }
  std::vector<std::uint32_t> numbered = ranks;
  std::sort(numbered.begin(), numbered.end(),
            [&](std::uint32_t a, std::uint32_t b) { return host_rank(a) < host_rank(b); });
  const auto same = [&](std::uint32_t a, std::uint32_t b) { return host_rank(a) == host_rank(b); };
  const bool all_known = host_rank(numbered.back()) != kUnknownHostRank;
  const bool distinct =
      std::adjacent_find(numbered.begin(), numbered.end(), same) == numbered.end();
  return all_known && distinct ? numbered : ranks;
}

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::connect(const Launch& launch, milliseconds timeout) {
  STRATA_ASSERT(launch.rank < launch.size, "a launch has a rank that is outside it");
  asio::io_context io;
  Tcp::acceptor acceptor = listen_anywhere(io);
  const Contact mine = introduce(launch.rank, launch.size, launch.host_rank, port_of(acceptor));
  Joined joined = join(launch.size == 1 ? std::vector{mine} : meet(launch, mine, timeout),
                       launch.rank, io, acceptor, timeout);
  std::unique_ptr<ControlPlane> plane(
      new ControlPlane(std::move(joined.mesh), std::move(joined.group)));
  plane->confirm(timeout);
  return plane;
}

std::unique_ptr<ControlPlane> ControlPlane::connect(std::uint32_t rank, std::uint32_t size,
                                                    const AllGather& all_gather,
                                                    milliseconds timeout) {
  STRATA_ASSERT(rank < size, "a launch has a rank that is outside it");
  asio::io_context io;
  Tcp::acceptor acceptor = listen_anywhere(io);
  const Contact mine = introduce(rank, size, std::nullopt, port_of(acceptor));
  Joined joined = join(meet(all_gather, mine), rank, io, acceptor, timeout);
  std::unique_ptr<ControlPlane> plane(
      new ControlPlane(std::move(joined.mesh), std::move(joined.group)));
  plane->confirm(timeout);
  return plane;
}

ControlPlane::ControlPlane(std::shared_ptr<Mesh> mesh, std::shared_ptr<Group> group)
    : mesh_(std::move(mesh)), group_(std::move(group)) {}

// A rank that could not connect to all says so by ending here.
void ControlPlane::confirm(milliseconds timeout) {
  const milliseconds usual = group_->timeout();
  group_->set_timeout(timeout);
  group_->call(ControlCall::connect, {});
  group_->set_timeout(usual);
}

ControlPlane::~ControlPlane() { group_->close(); }

std::uint32_t ControlPlane::rank() const { return group_->rank(); }
std::uint32_t ControlPlane::size() const { return group_->size(); }

Rank ControlPlane::host_rank() const {
  const auto ranks = members_on_host(*mesh_, *group_);
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  return Rank{static_cast<std::uint32_t>(own - ranks.begin())};
}

std::uint32_t ControlPlane::host_size() const {
  return static_cast<std::uint32_t>(members_on_host(*mesh_, *group_).size());
}

std::vector<std::byte> ControlPlane::call(ControlCall which, std::span<const std::byte> mine) {
  return group_->call(which, mine);
}

void ControlPlane::give_up(std::string_view reason) noexcept try {
  group_->give_up(reason);
} catch (const std::exception&) {
  // Out of memory: the peers' own timeouts will tell them.
}

void ControlPlane::set_timeout(milliseconds timeout) { group_->set_timeout(timeout); }
milliseconds ControlPlane::timeout() const { return group_->timeout(); }
std::optional<Error> ControlPlane::failure() const { return group_->failure(); }

void ControlPlane::on_failure(std::function<void(const Error&)> function) {
  group_->on_failure(std::move(function));
}

void ControlPlane::set_progress(std::uint64_t collectives) { group_->set_progress(collectives); }

std::vector<std::optional<std::uint64_t>> ControlPlane::ask_progress(milliseconds wait) {
  return group_->ask_progress(wait);
}

std::vector<std::uint32_t> ControlPlane::leaving() const { return group_->leaving(); }

std::unique_ptr<ControlPlane> ControlPlane::split(std::uint32_t color, std::uint32_t key) {
  struct Choice {
    std::uint32_t color;
    std::uint32_t key;
  };
  const Choice mine{color, key};
  const std::vector<std::byte> bytes = group_->call(ControlCall::split, bytes_of(mine));
  std::vector<Choice> choices(size());
  std::memcpy(choices.data(), bytes.data(), bytes.size());
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (choices[peer].color == color) ranks.push_back(peer);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::uint32_t a, std::uint32_t b) {
    return choices[a].key < choices[b].key;
  });
  std::vector<std::uint32_t> members;
  for (const std::uint32_t peer : ranks) members.push_back(group_->members()[peer]);
  auto part = mesh_->open_group(derived_id(group_->id(), group_->sequence()), std::move(members));
  part->set_timeout(timeout());
  return std::unique_ptr<ControlPlane>(new ControlPlane(mesh_, std::move(part)));
}

std::vector<Descriptor> ControlPlane::connect_payload() {
  asio::io_context io;
  Tcp::acceptor acceptor = listen_anywhere(io);
  const std::uint16_t mine = port_of(acceptor);
  const std::vector<std::byte> ports = group_->call(ControlCall::connect, bytes_of(mine));
  MeshPlan plan;
  plan.rank = rank();
  plan.token = mesh_->token();
  plan.channel = derived_id(group_->id(), group_->sequence());
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    // As the control connections were made: in the order of the mesh, by the addresses that work.
    const std::uint32_t member = group_->members()[peer];
    MeshPeer& end = plan.peers.emplace_back();
    end.dials_us = member > mesh_->rank();
    end.endpoints = {{mesh_->address_of(member), port_in(ports, peer)}};
    end.who = describe(mesh_->contacts()[member]);
  }
  const Patience patience(timeout(), [this] {
    if (const auto error = group_->failure()) throw Error(*error);
  });
  try {
    std::vector<Descriptor> sockets;
    for (const int fd : connect_mesh(plan, io, acceptor, patience)) sockets.emplace_back(fd);
    return sockets;
  } catch (const Error& error) {
    throw Error(group_->fail(error));
  }
}

Error ControlPlane::loss_of(std::uint32_t peer, std::string_view what) {
  return group_->loss_of(peer, what);
}

}  // namespace strata::tcp
