// Sockets as this room wants them: close-on-exec, non-blocking, IPv4 and IPv6. Operations either
// return an error code or throw Error(io) when the process cannot have another socket.
// Thread: as Boost.Asio's objects.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tcp/wire.hpp"

namespace strata::tcp {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using NetCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

// How long a step of connecting may go on.
struct Patience {
  explicit Patience(std::chrono::milliseconds limit, std::function<void()> looks = {})
      : given(limit), end(Clock::now() + limit), check(std::move(looks)) {}

  bool is_over() const { return Clock::now() >= end; }

  std::chrono::milliseconds given;
  Clock::time_point end;
  // Called often; throws when it is of no use to go on. May be empty.
  std::function<void()> check;
};

// How long a wait goes on before Patience::check is called again.
inline constexpr std::chrono::milliseconds kCheckPeriod{50};

// A socket to connect with. Empty and `error` set when there is none.
Tcp::socket open_socket(asio::io_context& io, const Tcp::endpoint& peer, NetCode& error);

// Listens at a port of every address of this host; 0: any port.
Tcp::acceptor listen_at(asio::io_context& io, std::uint16_t port, NetCode& error);
// The same at any port. Throws Error(io).
Tcp::acceptor listen_anywhere(asio::io_context& io);
std::uint16_t port_of(const Tcp::acceptor& acceptor);

// The next connection that waits at the acceptor; closed when none does or it failed.
Tcp::socket accept_one(asio::io_context& io, Tcp::acceptor& acceptor, NetCode& error);

// No delay for small messages, and probes while idle.
void tune(int fd);
// Ends the connection when the peer's host does not acknowledge for a while. Not for payload,
// where a peer that does not read yet is no failure.
void watch_for_silence(int fd);

// The descriptor, which the caller owns from now on. Pre: the socket is open.
int release(Tcp::socket& socket);

// The addresses by which others may reach this host, without loopback.
std::vector<asio::ip::address> own_addresses();

WireAddress to_wire(const asio::ip::address& address);
asio::ip::address from_wire(const WireAddress& bytes);
bool is_loopback(const asio::ip::address& address);
std::string text_of(const Tcp::endpoint& endpoint);

// A socket whose operations end with the patience: as blocking calls, with asio's timed_out when
// it took too long.
class TimedSocket {
 public:
  explicit TimedSocket(const Patience& patience) : patience_(patience), socket_(io_) {}

  // Gives up at `limit` or when the patience ends.
  NetCode connect(const Tcp::endpoint& peer, std::chrono::milliseconds limit);
  NetCode write(std::span<const std::byte> bytes);
  NetCode read(std::span<std::byte> bytes);
  void close();

  Tcp::socket& socket() { return socket_; }

 private:
  template <class Start>
  NetCode run(Start&& start, Clock::time_point end);

  const Patience& patience_;
  asio::io_context io_;
  Tcp::socket socket_;
};

// Accepts connections and reads one greeting of fixed size from each. Strangers that say less, or
// nothing, are kept waiting and disturb nobody.
class Reception {
 public:
  struct Guest {
    explicit Guest(Tcp::socket connection) : socket(std::move(connection)) {}
    Tcp::socket socket;
    std::vector<std::byte> greeting;
    std::byte beyond{};  // where a byte after the greeting would go
  };
  using GuestPtr = std::shared_ptr<Guest>;

  // `greeted` runs for each whole greeting, inside wait(). All arguments outlive this.
  Reception(asio::io_context& io, Tcp::acceptor& acceptor, std::size_t greeting_bytes,
            std::function<void(const GuestPtr&)> greeted);

  // Runs `ended` when the guest closes its connection, or says more.
  void watch(const GuestPtr& guest, std::function<void()> ended);

  // Until `done()` or the patience ends; true in the first case. Throws Error(io) when connections
  // cannot be accepted, and what the patience's check throws.
  template <class Done>
  bool wait(const Patience& patience, Done&& done) {
    while (!done()) {
      if (patience.is_over()) return false;
      if (patience.check) patience.check();
      step(patience);
    }
    return true;
  }

 private:
  void await_connection();
  void welcome(Tcp::socket connection);
  void step(const Patience& patience);

  asio::io_context& io_;
  Tcp::acceptor& acceptor_;
  std::size_t greeting_bytes_;
  std::function<void(const GuestPtr&)> greeted_;
  NetCode failed_;
};

}  // namespace strata::tcp
