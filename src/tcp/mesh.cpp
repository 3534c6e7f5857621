#include "tcp/mesh.hpp"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/signals_blocked.hpp"
#include "tcp/group.hpp"

namespace strata::tcp {
namespace {

using std::chrono::milliseconds;

// Taking down the mesh waits so long for a peer that does not read, and then for its kernel to
// have all.
constexpr milliseconds kFlushLimit{2'000};
constexpr milliseconds kAcknowledgeLimit{200};

// A rank makes one call at a time in each group, so that few frames are ever early.
constexpr std::uint32_t kMaxEarlyFrames = 1024;
// Questions about progress are not worth more memory than this when a peer does not read.
constexpr std::size_t kMaxQueueForQuestions = 64;

bool is_known(std::uint32_t kind) {
  return kind >= static_cast<std::uint32_t>(FrameKind::call) &&
         kind <= static_cast<std::uint32_t>(FrameKind::leave);
}

bool may_be_dropped(const std::vector<std::byte>& frame) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof(header));
  const auto kind = static_cast<FrameKind>(header.kind);
  return kind == FrameKind::ask || kind == FrameKind::answer;
}

}  // namespace

Mesh::Mesh(std::uint32_t rank, std::vector<Contact> contacts, const std::vector<int>& sockets)
    : rank_(rank),
      contacts_(std::move(contacts)),
      addresses_(contacts_.size()),
      work_(io_.get_executor()),
      links_(contacts_.size()) {
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
    if (peer == rank_) continue;
    links_[peer] = std::make_unique<Link>(io_);
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    Tcp::endpoint remote;
    if (::getpeername(sockets[peer], reinterpret_cast<sockaddr*>(&storage), &length) == 0) {
      std::memcpy(remote.data(), &storage, std::min<std::size_t>(length, remote.capacity()));
      remote.resize(length);
    }
    addresses_[peer] = remote.address();
    watch_for_silence(sockets[peer]);
    links_[peer]->socket.assign(remote.protocol(), sockets[peer]);
    read_header(peer);
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { serve(); });
}

Mesh::~Mesh() {
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> peers;
    for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
      if (peer != rank_) peers.push_back(peer);
    }
    send_locked(peers, FrameKind::leave, 0, {});
  }
  wait_until_sent();
  work_.reset();
  io_.stop();
  thread_.join();
  hang_up();
}

void Mesh::serve() {
  while (!io_.stopped()) {
    try {
      io_.run();
    } catch (const std::exception& error) {
      // Out of memory: whatever was being received or sent is lost.
      for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
        if (peer != rank_) lose(peer, fmt::format("can no longer be heard: {}", error.what()));
      }
    }
  }
}

void Mesh::wait_until_sent() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kFlushLimit, [&] { return unsent_ == 0; });
}

// A connection that is closed with bytes unread, or that gets more, is reset, and a reset can
// overtake what this rank sent last: reads all there is until the peers' kernels have everything.
void Mesh::hang_up() {
  const auto has_all = [](Link& link) {
    if (!link.socket.is_open()) return true;
    const int fd = link.socket.native_handle();
    char discarded[4096];
    while (::recv(fd, discarded, sizeof(discarded), MSG_DONTWAIT) > 0) continue;
    int unacknowledged = 0;
    return ::ioctl(fd, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
  };
  for (const auto& link : links_) {
    NetCode ignored;
    if (link) link->socket.shutdown(Tcp::socket::shutdown_send, ignored);
  }
  const auto end = Clock::now() + kAcknowledgeLimit;
  for (const auto& link : links_) {
    while (link && !has_all(*link) && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

std::shared_ptr<Group> Mesh::open_group(std::uint64_t id, std::vector<std::uint32_t> members) {
  const auto group = std::make_shared<Group>(*this, id, std::move(members));
  const std::lock_guard lock(mutex_);
  STRATA_ASSERT(!groups_.contains(id) && !closed_groups_.contains(id), "two groups have one id");
  groups_.emplace(id, group);
  for (const EarlyFrame& frame : early_[id]) {
    --links_[frame.from]->waiting;
    group->deliver_locked(frame.from, frame.kind, frame.body);
  }
  early_.erase(id);
  for (const std::uint32_t peer : group->members()) {
    if (peer == rank_) continue;
    const Link& link = *links_[peer];
    if (link.left) group->leave_locked(peer);
    if (!link.left && !link.lost.empty()) group->lose_locked(peer, link.lost);
  }
  return group;
}

void Mesh::close_group_locked(std::uint64_t id) {
  groups_.erase(id);
  closed_groups_.insert(id);
}

void Mesh::send_locked(const std::vector<std::uint32_t>& peers, FrameKind kind, std::uint64_t group,
                       std::span<const std::byte> body) {
  FrameHeader header;
  header.kind = static_cast<std::uint32_t>(kind);
  header.group = group;
  header.size_bytes = body.size();
  auto bytes = std::make_shared<std::vector<std::byte>>(sizeof(header) + body.size());
  std::memcpy(bytes->data(), &header, sizeof(header));
  std::copy(body.begin(), body.end(), bytes->begin() + sizeof(header));
  asio::post(io_, [this, peers, frame = Frame(std::move(bytes))] {
    for (const std::uint32_t peer : peers) enqueue(peer, frame);
  });
  unsent_ += peers.size();
}

void Mesh::post(std::function<void()> function) { asio::post(io_, std::move(function)); }

void Mesh::enqueue(std::uint32_t peer, const Frame& frame) {
  Link& link = *links_[peer];
  const bool full = link.outgoing.size() >= kMaxQueueForQuestions && may_be_dropped(*frame);
  if (link.socket.is_open() && !full) {
    link.outgoing.push_back(frame);
    if (link.outgoing.size() == 1) write_front(peer);
    return;
  }
  const std::lock_guard lock(mutex_);
  --unsent_;
  changed_.notify_all();
}

void Mesh::write_front(std::uint32_t peer) {
  Link& link = *links_[peer];
  const Frame frame = link.outgoing.front();
  asio::async_write(link.socket, asio::buffer(*frame),
                    [this, peer, frame](const NetCode& error, std::size_t) {
                      Link& written = *links_[peer];
                      if (written.outgoing.empty()) return;  // dropped
                      // Why is told by the reading side, after all that the peer sent before.
                      if (error) return drop_outgoing(peer);
                      written.outgoing.pop_front();
                      if (!written.outgoing.empty()) write_front(peer);
                      const std::lock_guard lock(mutex_);
                      if (--unsent_ == 0) changed_.notify_all();
                    });
}

void Mesh::drop_outgoing(std::uint32_t peer) {
  Link& link = *links_[peer];
  const std::lock_guard lock(mutex_);
  unsent_ -= link.outgoing.size();
  link.outgoing.clear();
  changed_.notify_all();
}

void Mesh::read_header(std::uint32_t peer) {
  Link& link = *links_[peer];
  asio::async_read(link.socket, asio::buffer(&link.header, sizeof(link.header)),
                   [this, peer](const NetCode& error, std::size_t) {
                     error ? lose_by(peer, error) : read_body(peer);
                   });
}

void Mesh::read_body(std::uint32_t peer) {
  Link& link = *links_[peer];
  if (link.header.magic != kFrameMagic || !is_known(link.header.kind) ||
      link.header.size_bytes > kMaxFrameBytes) {
    return lose(peer, "sent what is no control message; start the same build everywhere");
  }
  link.body.resize(link.header.size_bytes);
  if (link.body.empty()) return receive(peer);
  asio::async_read(link.socket, asio::buffer(link.body),
                   [this, peer](const NetCode& error, std::size_t) {
                     error ? lose_by(peer, error) : receive(peer);
                   });
}

void Mesh::receive(std::uint32_t peer) {
  bool understood = false;
  {
    const std::lock_guard lock(mutex_);
    understood = deliver_locked(peer);
    changed_.notify_all();
  }
  if (!understood) return lose(peer, "sent a control message that nobody asked for");
  read_header(peer);
}

bool Mesh::deliver_locked(std::uint32_t peer) {
  Link& link = *links_[peer];
  const auto kind = static_cast<FrameKind>(link.header.kind);
  if (kind == FrameKind::leave) {
    link.left = true;
    for (const auto& [id, group] : groups_) group->leave_locked(peer);
    return true;
  }
  const auto found = groups_.find(link.header.group);
  if (found != groups_.end()) return found->second->deliver_locked(peer, kind, link.body);
  return closed_groups_.contains(link.header.group) || keep_early_locked(peer);
}

// The peer has finished a split that this rank is still in.
bool Mesh::keep_early_locked(std::uint32_t peer) {
  Link& link = *links_[peer];
  if (link.waiting >= kMaxEarlyFrames) return false;
  ++link.waiting;
  early_[link.header.group].push_back(
      {peer, static_cast<FrameKind>(link.header.kind), std::move(link.body)});
  return true;
}

void Mesh::lose_by(std::uint32_t peer, const NetCode& error) {
  if (error == asio::error::operation_aborted) return;  // this rank closes
  const bool ended = error == asio::error::eof || error == asio::error::connection_reset ||
                     error == asio::error::broken_pipe;
  lose(peer, ended ? "closed its connection: it has died or was killed; look for its last message"
                   : fmt::format("does not answer any more ({}): its host or the network is down",
                                 error.message()));
}

void Mesh::lose(std::uint32_t peer, const std::string& why) {
  Link& link = *links_[peer];
  NetCode ignored;
  link.socket.close(ignored);
  drop_outgoing(peer);
  const std::lock_guard lock(mutex_);
  if (!link.lost.empty()) return;
  link.lost = why;
  if (!link.left) {
    for (const auto& [id, group] : groups_) group->lose_locked(peer, why);
  }
  changed_.notify_all();
}

}  // namespace strata::tcp
