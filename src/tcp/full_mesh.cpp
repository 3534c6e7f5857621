#include "tcp/full_mesh.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <cstring>
#include <optional>
#include <thread>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata::tcp {
namespace {

using std::chrono::milliseconds;

// For one address: a host that drops packets must not use up the whole patience.
constexpr milliseconds kConnectLimit{3'000};
constexpr milliseconds kPause{50};

class MeshBuilder {
 public:
  MeshBuilder(const MeshPlan& plan, asio::io_context& io, Tcp::acceptor& acceptor,
              const Patience& patience)
      : plan_(plan),
        patience_(patience),
        reception_(io, acceptor, sizeof(Hello),
                   [this](const Reception::GuestPtr& guest) { greet(guest); }),
        sockets_(plan.peers.size(), -1) {}

  ~MeshBuilder() {
    for (const int fd : sockets_) {
      if (fd >= 0) ::close(fd);
    }
  }
  MeshBuilder(const MeshBuilder&) = delete;
  MeshBuilder& operator=(const MeshBuilder&) = delete;

  std::vector<int> run() {
    for (std::uint32_t peer = 0; peer < plan_.peers.size(); ++peer) {
      if (peer != plan_.rank && !plan_.peers[peer].dials_us) sockets_[peer] = dial(peer);
    }
    if (!reception_.wait(patience_, [&] { return missing().empty(); })) {
      throw Error(absence_error(missing()));
    }
    for (const int fd : sockets_) {
      if (fd >= 0) tune(fd);
    }
    return std::exchange(sockets_, {});
  }

 private:
  int dial(std::uint32_t peer) {
    std::string last = "no address is known";
    for (;;) {
      for (const Tcp::endpoint& endpoint : plan_.peers[peer].endpoints) {
        TimedSocket socket(patience_);
        NetCode error = socket.connect(endpoint, kConnectLimit);
        if (!error) error = shake_hands(socket, peer);
        if (!error) return release(socket.socket());
        last = fmt::format("{}: {}", text_of(endpoint), error.message());
        if (patience_.is_over()) break;
      }
      if (patience_.check) patience_.check();
      if (Clock::now() + kPause >= patience_.end) throw Error(dial_error(peer, last));
      std::this_thread::sleep_for(kPause);
    }
  }

  Hello hello_to(std::uint32_t peer) const {
    Hello hello;
    hello.from = plan_.rank;
    hello.to = peer;
    hello.token = plan_.token;
    hello.channel = plan_.channel;
    return hello;
  }

  // Whoever answers is the peer, or the connection is of no use.
  NetCode shake_hands(TimedSocket& socket, std::uint32_t peer) const {
    Hello answer;
    NetCode error = socket.write(bytes_of(hello_to(peer)));
    if (!error) error = socket.read(std::as_writable_bytes(std::span(&answer, 1)));
    if (!error && !is_from(answer, peer)) error = asio::error::connection_refused;
    return error;
  }

  bool is_from(const Hello& hello, std::uint32_t peer) const {
    return hello.magic == kHelloMagic && hello.version == kProtocolVersion &&
           hello.token == plan_.token && hello.channel == plan_.channel && hello.from == peer &&
           hello.to == plan_.rank;
  }

  void greet(const Reception::GuestPtr& guest) {
    Hello hello;
    std::memcpy(&hello, guest->greeting.data(), sizeof(hello));
    const std::uint32_t peer = hello.from;
    if (peer >= plan_.peers.size() || !is_from(hello, peer) || !plan_.peers[peer].dials_us) return;
    // So few bytes always fit an empty send buffer.
    NetCode error;
    const Hello answer = hello_to(peer);
    const std::size_t sent = guest->socket.write_some(asio::buffer(&answer, sizeof(answer)), error);
    if (error || sent != sizeof(answer)) return;
    // A peer that comes again has lost its first connection.
    if (sockets_[peer] >= 0) ::close(sockets_[peer]);
    sockets_[peer] = release(guest->socket);
  }

  std::vector<std::uint32_t> missing() const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t peer = 0; peer < sockets_.size(); ++peer) {
      if (peer != plan_.rank && sockets_[peer] < 0) ranks.push_back(peer);
    }
    return ranks;
  }

  Error absence_error(const std::vector<std::uint32_t>& ranks) const {
    return Error(ErrorCode::rank_lost,
                 fmt::format("{} did not connect to rank {} within {} ms: look for their own "
                             "messages, and whether a firewall is between the hosts",
                             name_ranks(ranks), plan_.rank, patience_.given.count()),
                 {.rank = Rank{ranks.front()}});
  }

  Error dial_error(std::uint32_t peer, const std::string& last) const {
    return Error(
        ErrorCode::rank_lost,
        fmt::format("rank {} could not connect to rank {} ({}) within {} ms ({}): has it "
                    "ended, or is a firewall between the hosts?",
                    plan_.rank, peer, plan_.peers[peer].who, patience_.given.count(), last),
        {.rank = Rank{peer}});
  }

  const MeshPlan& plan_;
  const Patience& patience_;
  Reception reception_;
  std::vector<int> sockets_;  // by rank; -1: not yet
};

}  // namespace

std::vector<int> connect_mesh(const MeshPlan& plan, asio::io_context& io, Tcp::acceptor& acceptor,
                              const Patience& patience) {
  return MeshBuilder(plan, io, acceptor, patience).run();
}

}  // namespace strata::tcp
