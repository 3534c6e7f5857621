#include "tcp/payload_plane.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "base/check.hpp"
#include "base/reduce.hpp"

namespace strata::tcp {
namespace {

constexpr std::uint64_t kCacheLine = 64;
// What one system call moves at most, so that no peer waits long for its turn.
constexpr std::uint64_t kTurnBytes = std::uint64_t{1} << 20;

bool is_not_now(int errnum) { return errnum == EAGAIN || errnum == EWOULDBLOCK || errnum == EINTR; }

int poll_timeout(std::chrono::steady_clock::duration left) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, std::numeric_limits<int>::max()));
}

}  // namespace

Bytes PayloadPlane::least_staging(std::uint32_t ranks) {
  return Bytes{2 * kCacheLine} * std::max(ranks - 1, 1U);
}

PayloadPlane::PayloadPlane(ControlPlane& control, const FirstFailure& failure, Bytes staging)
    : control_(control),
      failure_(failure),
      sockets_(control.connect_payload()),
      staging_(staging.value),
      slice_bytes_(staging.value / 2 / (control.size() - 1) / kCacheLine * kCacheLine),
      traffic_(control.size()),
      polled_(control.size() + 1),
      inputs_(control.size()) {
  STRATA_ASSERT(slice_bytes_ > 0, "staging is too small for so many ranks");
}

void PayloadPlane::all_gather(const Shards& shards) {
  if (shards.total_bytes == 0) return;
  begin(CollectiveOp::all_gather);
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    send_to(peer, shards.shard(rank()));
    receive_from(peer, shards.shard(peer).size());
  }
  move([&](std::uint32_t peer, std::uint64_t offset) { return shards.shard(peer).subspan(offset); },
       [] {});
}

void PayloadPlane::reduce_scatter(const Shards& shards) {
  if (shards.total_bytes == 0) return;
  const std::span<std::byte> own = shards.shard(rank());
  begin(CollectiveOp::reduce_scatter);
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    send_to(peer, shards.shard(peer));
    receive_from(peer, own.size());
  }
  std::uint64_t summed = 0;  // chunks
  const auto end_of = [&](std::uint64_t chunk) {
    return std::min<std::uint64_t>((chunk + 1) * slice_bytes_, own.size());
  };
  const auto place = [&](std::uint32_t peer, std::uint64_t offset) -> std::span<std::byte> {
    const std::uint64_t chunk = offset / slice_bytes_;
    if (chunk >= summed + 2) return {};  // its half still holds what is to be summed
    return {slot(chunk, peer) + offset % slice_bytes_, end_of(chunk) - offset};
  };
  const auto sum = [&] {
    while (summed * slice_bytes_ < own.size() && least_received() >= end_of(summed)) {
      std::byte* const out = own.data() + summed * slice_bytes_;
      for (std::uint32_t peer = 0; peer < size(); ++peer) {
        inputs_[peer] = peer == rank() ? out : slot(summed, peer);
      }
      const std::uint64_t bytes = end_of(summed) - summed * slice_bytes_;
      sum_in_rank_order(out, inputs_, bytes / size_of(shards.dtype).value, shards.dtype);
      ++summed;
    }
  };
  move(place, sum);
}

void PayloadPlane::broadcast(std::byte* data, std::uint64_t size_bytes, std::uint32_t root) {
  if (size_bytes == 0) return;
  const std::span<std::byte> bytes(data, size_bytes);
  begin(CollectiveOp::broadcast);
  if (rank() != root) {
    receive_from(root, bytes.size());
  } else {
    for (std::uint32_t peer = 0; peer < size(); ++peer) send_to(peer, bytes);
  }
  move([&](std::uint32_t, std::uint64_t offset) { return bytes.subspan(offset); }, [] {});
}

void PayloadPlane::begin(CollectiveOp op) {
  op_ = op;
  ++sequence_;
  std::fill(traffic_.begin(), traffic_.end(), Traffic{});
}

void PayloadPlane::send_to(std::uint32_t peer, std::span<const std::byte> bytes) {
  if (peer == rank()) return;
  Traffic& traffic = traffic_[peer];
  traffic.sends = true;
  traffic.outgoing = bytes;
  traffic.sent_header.op = static_cast<std::uint32_t>(op_);
  traffic.sent_header.sequence = sequence_;
  traffic.sent_header.size_bytes = bytes.size();
}

void PayloadPlane::receive_from(std::uint32_t peer, std::uint64_t size_bytes) {
  if (peer == rank()) return;
  traffic_[peer].receives = true;
  traffic_[peer].incoming_bytes = size_bytes;
}

template <class Place, class Landed>
void PayloadPlane::move(Place&& place, Landed&& landed) {
  auto last_progress = Clock::now();
  while (!is_done()) {
    failure_.throw_if_set();
    if (move_some(place)) {
      landed();
      last_progress = Clock::now();
    } else {
      wait_for_peers(place, last_progress);
    }
  }
}

bool PayloadPlane::is_done() const {
  return std::all_of(traffic_.begin(), traffic_.end(), [](const Traffic& traffic) {
    return traffic.all_sent() && traffic.all_received();
  });
}

// Every peer has its turn, beginning with the next rank, so that not all send to one.
template <class Place>
bool PayloadPlane::move_some(Place&& place) {
  bool moved = false;
  for (std::uint32_t step = 1; step < size(); ++step) {
    const std::uint32_t peer = (rank() + step) % size();
    Traffic& traffic = traffic_[peer];
    if (!traffic.all_sent() && send_some(peer)) moved = true;
    if (traffic.all_received()) continue;
    if (traffic.in_header()) {
      if (!receive_header(peer)) continue;
      moved = true;
    }
    const std::span<std::byte> space = place(peer, traffic.payload_received());
    if (space.empty()) continue;
    const std::size_t came =
        receive_some(peer, space.data(), std::min<std::uint64_t>(space.size(), kTurnBytes));
    traffic.received += came;
    moved = moved || came > 0;
  }
  return moved;
}

bool PayloadPlane::send_some(std::uint32_t peer) {
  Traffic& traffic = traffic_[peer];
  std::array<iovec, 2> pieces{};
  std::size_t count = 0;
  // sendmsg() takes pointers to what it only reads.
  const auto add = [&](const void* data, std::uint64_t bytes) {
    if (bytes > 0) pieces[count++] = {const_cast<void*>(data), bytes};
  };
  const std::uint64_t in_header = std::min<std::uint64_t>(traffic.sent, sizeof(PayloadHeader));
  const std::uint64_t offset = traffic.sent - in_header;
  add(reinterpret_cast<const std::byte*>(&traffic.sent_header) + in_header,
      sizeof(PayloadHeader) - in_header);
  add(traffic.outgoing.data() + offset,
      std::min<std::uint64_t>(traffic.outgoing.size() - offset, kTurnBytes));
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(sockets_[peer].get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    traffic.sent += static_cast<std::uint64_t>(sent);
    return sent > 0;
  }
  if (is_not_now(errno)) return false;
  throw Error(control_.loss_of(peer, name_of(op_)));
}

bool PayloadPlane::receive_header(std::uint32_t peer) {
  Traffic& traffic = traffic_[peer];
  auto* const start = reinterpret_cast<std::byte*>(&traffic.received_header) + traffic.received;
  traffic.received += receive_some(peer, start, sizeof(PayloadHeader) - traffic.received);
  if (traffic.in_header()) return false;
  check_header(peer);
  return true;
}

std::size_t PayloadPlane::receive_some(std::uint32_t peer, std::byte* data, std::uint64_t limit) {
  const ssize_t came = ::recv(sockets_[peer].get(), data, limit, MSG_DONTWAIT);
  if (came > 0) return static_cast<std::size_t>(came);
  if (came < 0 && is_not_now(errno)) return 0;
  throw Error(control_.loss_of(peer, name_of(op_)));
}

void PayloadPlane::check_header(std::uint32_t peer) const {
  const PayloadHeader& header = traffic_[peer].received_header;
  const std::uint64_t expected = traffic_[peer].incoming_bytes;
  if (header.magic == kPayloadMagic && header.op == static_cast<std::uint32_t>(op_) &&
      header.sequence == sequence_ && header.size_bytes == expected) {
    return;
  }
  throw Error(
      ErrorCode::diverged,
      fmt::format("rank {} sends {} bytes in {} number {} while rank {} expects {} bytes in {} "
                  "number {}; all ranks must enqueue the same collectives",
                  peer, header.size_bytes, name_of(static_cast<CollectiveOp>(header.op)),
                  header.sequence, rank(), expected, name_of(op_), sequence_),
      {.rank = Rank{peer}});
}

template <class Place>
void PayloadPlane::wait_for_peers(Place&& place, Clock::time_point last_progress) {
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    const Traffic& traffic = traffic_[peer];
    short events = traffic.all_sent() ? 0 : POLLOUT;
    if (!traffic.all_received() &&
        (traffic.in_header() || !place(peer, traffic.payload_received()).empty())) {
      events |= POLLIN;
    }
    // A connection that is of no interest now must not wake this thread by having ended.
    polled_[peer] = {events == 0 ? -1 : sockets_[peer].get(), events, 0};
  }
  polled_.back() = {wake_.descriptor(), POLLIN, 0};
  const auto timeout = control_.timeout();
  const auto left = last_progress + timeout - Clock::now();
  const int ready = ::poll(polled_.data(), polled_.size(), poll_timeout(left));
  if (ready > 0 && polled_.back().revents != 0) wake_.clear();
  if (ready != 0 || left > Clock::duration(0)) return;
  throw timeout_error(awaited(), rank(), name_of(op_), timeout);
}

// Whom the collective waits for: those whose bytes could be taken, else those that take none.
std::vector<std::uint32_t> PayloadPlane::awaited() const {
  std::vector<std::uint32_t> silent;
  std::vector<std::uint32_t> full;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if ((polled_[peer].events & POLLIN) != 0) silent.push_back(peer);
    if ((polled_[peer].events & POLLOUT) != 0) full.push_back(peer);
  }
  return silent.empty() ? full : silent;
}

std::byte* PayloadPlane::slot(std::uint64_t chunk, std::uint32_t peer) {
  const std::uint64_t position = peer < rank() ? peer : peer - 1;
  return staging_.data() + (chunk % 2 * (size() - 1) + position) * slice_bytes_;
}

std::uint64_t PayloadPlane::least_received() const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer != rank()) least = std::min(least, traffic_[peer].payload_received());
  }
  return least;
}

}  // namespace strata::tcp
