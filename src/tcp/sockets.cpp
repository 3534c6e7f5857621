#include "tcp/sockets.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata::tcp {
namespace {

constexpr int kBacklog = 4096;  // the kernel cuts it to net.core.somaxconn

NetCode last_error() { return {errno, boost::system::system_category()}; }

void set_option(int fd, int level, int name, int value) {
  // A kernel without the option only notices some failures later.
  [[maybe_unused]] const int result = ::setsockopt(fd, level, name, &value, sizeof(value));
}

// -1 and `error` set when the kernel refuses.
int open_descriptor(int family, NetCode& error) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) error = last_error();
  return fd;
}

// Gives `fd` to a socket or an acceptor, or closes it.
template <class Owner>
void give(int fd, const Tcp& protocol, Owner& owner, NetCode& error) {
  owner.assign(protocol, fd, error);
  if (error) ::close(fd);
}

Tcp protocol_of(const Tcp::endpoint& endpoint) { return endpoint.protocol(); }

Tcp::acceptor listen_on(asio::io_context& io, const Tcp::endpoint& at, NetCode& error) {
  error = {};
  Tcp::acceptor acceptor(io);
  const int fd = open_descriptor(at.protocol().family(), error);
  if (fd < 0) return acceptor;
  // A port that an earlier run used a moment ago may be used again.
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.address().is_v6()) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd, at.data(), static_cast<socklen_t>(at.size())) != 0 ||
      ::listen(fd, kBacklog) != 0) {
    error = last_error();
    ::close(fd);
    return acceptor;
  }
  give(fd, protocol_of(at), acceptor, error);
  return acceptor;
}

}  // namespace

Tcp::socket open_socket(asio::io_context& io, const Tcp::endpoint& peer, NetCode& error) {
  error = {};
  Tcp::socket socket(io);
  const int fd = open_descriptor(peer.protocol().family(), error);
  if (fd >= 0) give(fd, peer.protocol(), socket, error);
  return socket;
}

Tcp::acceptor listen_at(asio::io_context& io, std::uint16_t port, NetCode& error) {
  Tcp::acceptor both = listen_on(io, {Tcp::v6(), port}, error);
  // Hosts without IPv6 exist; any other error would only be met again.
  const bool no_ipv6 =
      error == asio::error::address_family_not_supported || error.value() == EADDRNOTAVAIL;
  if (!no_ipv6) return both;
  return listen_on(io, {Tcp::v4(), port}, error);
}

Tcp::acceptor listen_anywhere(asio::io_context& io) {
  NetCode error;
  Tcp::acceptor acceptor = listen_at(io, 0, error);
  if (error) {
    throw Error(ErrorCode::io, "cannot open a socket to listen on", {.errnum = error.value()});
  }
  return acceptor;
}

std::uint16_t port_of(const Tcp::acceptor& acceptor) { return acceptor.local_endpoint().port(); }

Tcp::socket accept_one(asio::io_context& io, Tcp::acceptor& acceptor, NetCode& error) {
  error = {};
  Tcp::socket socket(io);
  const int fd =
      ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    // A connection that went away before it was accepted is no error of ours (man 2 accept).
    const bool ours = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (ours) error = last_error();
    return socket;
  }
  give(fd, protocol_of(acceptor.local_endpoint()), socket, error);
  return socket;
}

void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // Three unanswered probes after ten quiet seconds end a connection to a host that is gone.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

void watch_for_silence(int fd) {
  constexpr int kSilenceMs = 25'000;  // as long as the probes of tune() take
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMs);
}

int release(Tcp::socket& socket) {
  NetCode error;
  const int fd = socket.release(error);
  STRATA_ASSERT(!error, "a socket could not be taken out of its io_context");
  return fd;
}

std::vector<asio::ip::address> own_addresses() {
  std::vector<asio::ip::address> addresses;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return addresses;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    asio::ip::address address;
    if (entry->ifa_addr->sa_family == AF_INET) {
      sockaddr_in ipv4{};
      std::memcpy(&ipv4, entry->ifa_addr, sizeof(ipv4));
      address = asio::ip::address_v4(ntohl(ipv4.sin_addr.s_addr));
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      sockaddr_in6 ipv6{};
      std::memcpy(&ipv6, entry->ifa_addr, sizeof(ipv6));
      asio::ip::address_v6::bytes_type bytes;
      std::memcpy(bytes.data(), &ipv6.sin6_addr, bytes.size());
      const asio::ip::address_v6 candidate(bytes);
      if (candidate.is_link_local()) continue;  // means something on one link only
      address = candidate;
    } else {
      continue;
    }
    if (!is_loopback(address)) addresses.push_back(address);
  }
  ::freeifaddrs(first);
  return addresses;
}

WireAddress to_wire(const asio::ip::address& address) {
  if (address.is_v6()) return address.to_v6().to_bytes();
  return asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4()).to_bytes();
}

asio::ip::address from_wire(const WireAddress& bytes) {
  const asio::ip::address_v6 address(bytes);
  if (address.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, address);
  return address;
}

bool is_loopback(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

std::string text_of(const Tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

template <class Start>
NetCode TimedSocket::run(Start&& start, Clock::time_point end) {
  std::optional<NetCode> result;
  start([&](const NetCode& error, auto&&...) { result = error; });
  const auto cancel = [&] {
    close();
    io_.restart();
    io_.run();  // the handler refers to `result`
  };
  while (!result) {
    if (Clock::now() >= end) {
      cancel();
      return asio::error::timed_out;
    }
    try {
      if (patience_.check) patience_.check();
    } catch (...) {
      cancel();
      throw;
    }
    io_.restart();
    io_.run_one_until(std::min(end, Clock::now() + kCheckPeriod));
  }
  return *result;
}

NetCode TimedSocket::connect(const Tcp::endpoint& peer, std::chrono::milliseconds limit) {
  close();
  NetCode error;
  socket_ = open_socket(io_, peer, error);
  if (error) return error;
  return run([&](auto done) { socket_.async_connect(peer, done); },
             std::min(patience_.end, Clock::now() + limit));
}

NetCode TimedSocket::write(std::span<const std::byte> bytes) {
  return run(
      [&](auto done) {
        asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), done);
      },
      patience_.end);
}

NetCode TimedSocket::read(std::span<std::byte> bytes) {
  return run(
      [&](auto done) { asio::async_read(socket_, asio::buffer(bytes.data(), bytes.size()), done); },
      patience_.end);
}

void TimedSocket::close() {
  NetCode ignored;
  socket_.close(ignored);
}

Reception::Reception(asio::io_context& io, Tcp::acceptor& acceptor, std::size_t greeting_bytes,
                     std::function<void(const GuestPtr&)> greeted)
    : io_(io), acceptor_(acceptor), greeting_bytes_(greeting_bytes), greeted_(std::move(greeted)) {
  NetCode error;
  acceptor_.non_blocking(true, error);
  if (error) failed_ = error;
  await_connection();
}

void Reception::await_connection() {
  acceptor_.async_wait(Tcp::acceptor::wait_read, [this](const NetCode& error) {
    if (error) return;  // the acceptor was closed
    Tcp::socket connection = accept_one(io_, acceptor_, failed_);
    if (failed_) return;
    if (connection.is_open()) welcome(std::move(connection));
    await_connection();
  });
}

void Reception::welcome(Tcp::socket connection) {
  const auto guest = std::make_shared<Guest>(std::move(connection));
  guest->greeting.resize(greeting_bytes_);
  asio::async_read(guest->socket, asio::buffer(guest->greeting),
                   [this, guest](const NetCode& error, std::size_t) {
                     if (!error) greeted_(guest);
                   });
}

void Reception::watch(const GuestPtr& guest, std::function<void()> ended) {
  asio::async_read(guest->socket, asio::buffer(&guest->beyond, 1),
                   [guest, then = std::move(ended)](const NetCode& error, std::size_t) {
                     if (error != asio::error::operation_aborted) then();
                   });
}

void Reception::step(const Patience& patience) {
  if (failed_) {
    throw Error(ErrorCode::io, "cannot accept connections of other ranks (see ulimit -n)",
                {.errnum = failed_.value()});
  }
  io_.restart();
  io_.run_one_until(std::min(patience.end, Clock::now() + kCheckPeriod));
}

}  // namespace strata::tcp
