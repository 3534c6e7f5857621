#include "tcp/rendezvous.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <random>
#include <string_view>
#include <thread>

#include "strata/error.hpp"

namespace strata::tcp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectLimit{5'000};
constexpr milliseconds kShortestPause{20};
constexpr milliseconds kLongestPause{500};

// How long a rank that reached rank 0 waits for its answer. Rank 0 began to wait before anybody
// could reach it, so that its own timeout ends first.
milliseconds answer_limit(milliseconds timeout) {
  return timeout + std::max(timeout / 8, milliseconds(500));
}

std::string meeting_point(const Launch& launch) {
  return fmt::format("{}:{}", launch.master_addr, launch.master_port);
}

std::string text_of(milliseconds time) {
  const bool whole_seconds = time.count() % 1000 == 0;
  return whole_seconds ? fmt::format("{} s", time.count() / 1000)
                       : fmt::format("{} ms", time.count());
}

Token draw_token() {
  std::random_device device;
  const auto draw = [&] { return std::uint64_t{device()} << 32 | device(); };
  return {draw(), draw()};
}

std::vector<Contact> contacts_in(std::span<const std::byte> bytes) {
  std::vector<Contact> contacts(bytes.size() / sizeof(Contact));
  std::memcpy(contacts.data(), bytes.data(), contacts.size() * sizeof(Contact));
  return contacts;
}

// What is wrong with a contact that came to rank `mine.rank`, if anything. Total: the contact is
// what a stranger sent.
std::optional<Error> find_fault(const Contact& contact, const Contact& mine) {
  const auto fault = [&](const std::string& text) {
    return Error(ErrorCode::config, text, {.rank = Rank{contact.rank}});
  };
  if (contact.version != mine.version) {
    return fault(
        fmt::format("rank {} ({}) speaks version {} of the rendezvous and rank {} version "
                    "{}; start the same build everywhere",
                    contact.rank, describe(contact), contact.version, mine.rank, mine.version));
  }
  if (contact.size != mine.size) {
    return fault(fmt::format(
        "rank {} ({}) was started with WORLD_SIZE={} and rank {} ({}) with "
        "{}; all ranks must be started with the same number",
        contact.rank, describe(contact), contact.size, mine.rank, describe(mine), mine.size));
  }
  if (contact.rank >= mine.size) {
    return fault(
        fmt::format("a process was started as RANK={} of WORLD_SIZE={} ({}); ranks go "
                    "from 0 to {}",
                    contact.rank, mine.size, describe(contact), mine.size - 1));
  }
  return std::nullopt;
}

Error twice_error(const Contact& first, const Contact& second) {
  return Error(ErrorCode::config,
               fmt::format("two processes were started as rank {}: {} and {}; every process needs "
                           "a RANK of its own",
                           first.rank, describe(first), describe(second)),
               {.rank = Rank{first.rank}});
}

// Rank 0's side: collects the contacts, then tells everybody who came all of them, or what went
// wrong.
class MeetingHost {
 public:
  MeetingHost(const Launch& launch, const Contact& mine, milliseconds timeout)
      : launch_(launch),
        patience_(timeout),
        acceptor_(listen()),
        reception_(io_, acceptor_, sizeof(Contact),
                   [this](const Reception::GuestPtr& guest) { greet(guest); }),
        mine_(mine),
        members_(mine.size) {
    members_[0].contact = mine;
    put_first(*members_[0].contact, asio::ip::address_v4::loopback());
  }

  std::vector<Contact> run() {
    const bool all_came = reception_.wait(patience_, [&] { return fault_ || missing().empty(); });
    if (!all_came) fault_ = absence_error(missing());
    if (fault_) {
      const std::string_view text = std::string_view(fault_->what()).substr(0, kMaxReplyText);
      tell_all({.failed = 1, .code = static_cast<std::uint32_t>(fault_->code())},
               std::as_bytes(std::span(text)));
      throw Error(*fault_);
    }
    std::vector<Contact> contacts;
    for (const Member& member : members_) contacts.push_back(*member.contact);
    tell_all({}, std::as_bytes(std::span(contacts)));
    return contacts;
  }

 private:
  struct Member {
    std::optional<Contact> contact;
    Reception::GuestPtr guest;  // null for rank 0
  };

  Tcp::acceptor listen() {
    NetCode error;
    Tcp::acceptor acceptor = listen_at(io_, launch_.master_port, error);
    if (!error) return acceptor;
    throw Error(ErrorCode::config,
                fmt::format("rank 0 cannot listen at {}: another program, an earlier run or a "
                            "second process with RANK=0 has port {}; end it, or set MASTER_PORT to "
                            "a free port for all ranks",
                            meeting_point(launch_), launch_.master_port),
                {.errnum = error.value()});
  }

  void greet(const Reception::GuestPtr& guest) {
    Contact contact;
    std::memcpy(&contact, guest->greeting.data(), sizeof(contact));
    if (contact.magic != kContactMagic) return;  // a stranger; its connection closes
    contact.host_name[sizeof(contact.host_name) - 1] = '\0';
    guests_.push_back(guest);
    if (fault_) return;
    fault_ = find_fault(contact, mine_);
    if (!fault_) take_in(contact, guest);
  }

  void take_in(Contact contact, const Reception::GuestPtr& guest) {
    Member& member = members_[contact.rank];
    // The same process may have lost its connection and come again.
    if (member.contact && member.contact->token != contact.token) {
      fault_ = twice_error(*member.contact, contact);
      return;
    }
    NetCode error;
    const Tcp::endpoint seen = guest->socket.remote_endpoint(error);
    if (error) return;
    put_first(contact, seen.address());
    member = {contact, guest};
    reception_.watch(guest, [this, rank = contact.rank, guest] {
      if (members_[rank].guest == guest) members_[rank] = {};
    });
  }

  // What rank 0 sees works at least from its host. Its loopback says only that the rank runs on
  // the same host, which other hosts reach by rank 0's address.
  static void put_first(Contact& contact, const asio::ip::address& seen) {
    const std::size_t kept = std::min<std::size_t>(contact.address_count, kMaxAddresses - 1);
    std::move_backward(contact.addresses.begin(), contact.addresses.begin() + kept,
                       contact.addresses.begin() + kept + 1);
    contact.addresses[0] = is_loopback(seen) ? WireAddress{} : to_wire(seen);
    contact.address_count = static_cast<std::uint16_t>(kept + 1);
  }

  std::vector<std::uint32_t> missing() const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
      if (!members_[rank].contact) ranks.push_back(rank);
    }
    return ranks;
  }

  Error absence_error(const std::vector<std::uint32_t>& ranks) const {
    return Error(ErrorCode::rank_lost,
                 fmt::format("{} did not arrive at {} within {}: look for their own messages, and "
                             "whether all {} ranks were started and a firewall lets them through",
                             name_ranks(ranks), meeting_point(launch_), text_of(patience_.given),
                             launch_.size),
                 {.rank = Rank{ranks.front()}});
  }

  // Best effort, for a moment: a guest that is gone is missed later.
  void tell_all(Reply reply, std::span<const std::byte> payload) {
    reply.size_bytes = payload.size();
    const std::array<asio::const_buffer, 2> message = {
        asio::buffer(&reply, sizeof(reply)), asio::buffer(payload.data(), payload.size())};
    const auto left = std::make_shared<std::size_t>(guests_.size());
    for (const Reception::GuestPtr& guest : guests_) {
      asio::async_write(guest->socket, message, [left](const NetCode&, std::size_t) { --*left; });
    }
    reception_.wait(Patience(milliseconds(2'000)), [&] { return *left == 0; });
  }

  const Launch& launch_;
  const Patience patience_;
  asio::io_context io_;
  Tcp::acceptor acceptor_;
  Reception reception_;
  const Contact& mine_;
  std::vector<Member> members_;              // by rank
  std::vector<Reception::GuestPtr> guests_;  // all that spoke our language
  std::optional<Error> fault_;
};

// The side of the other ranks.
class MeetingGuest {
 public:
  MeetingGuest(const Launch& launch, const Contact& mine, milliseconds timeout)
      : launch_(launch), mine_(mine), start_(Clock::now()), timeout_(timeout) {}

  std::vector<Contact> run() {
    milliseconds pause = kShortestPause;
    for (;;) {
      if (auto contacts = try_once()) return *std::move(contacts);
      if (Clock::now() + pause > start_ + timeout_) throw Error(give_up_error());
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

 private:
  // Empty when it may be worth trying again; `last_` then says what happened.
  std::optional<std::vector<Contact>> try_once() {
    for (const Tcp::endpoint& endpoint : resolve()) {
      const milliseconds connect_limit = std::min(kConnectLimit, time_left());
      const Patience patience(connect_limit + answer_limit(timeout_));
      TimedSocket socket(patience);
      if (const NetCode error = socket.connect(endpoint, connect_limit)) {
        note(endpoint, error.message());
        continue;
      }
      if (auto contacts = introduce_myself(socket, endpoint)) return contacts;
    }
    return std::nullopt;
  }

  std::vector<Tcp::endpoint> resolve() {
    asio::io_context io;
    Tcp::resolver resolver(io);
    NetCode error;
    const auto results = resolver.resolve(launch_.master_addr, std::to_string(launch_.master_port),
                                          Tcp::resolver::numeric_service, error);
    unresolved_ = static_cast<bool>(error);
    if (error) last_ = error.message();
    std::vector<Tcp::endpoint> endpoints;
    for (const auto& result : results) endpoints.push_back(result.endpoint());
    return endpoints;
  }

  std::optional<std::vector<Contact>> introduce_myself(TimedSocket& socket,
                                                       const Tcp::endpoint& endpoint) {
    Reply reply;
    NetCode error = socket.write(bytes_of(mine_));
    if (!error) error = socket.read(std::as_writable_bytes(std::span(&reply, 1)));
    if (error == asio::error::timed_out) throw Error(silence_error(endpoint));
    if (error) {
      note(endpoint, fmt::format("it closed the connection ({})", error.message()));
      return std::nullopt;
    }
    check_reply(reply, endpoint);
    std::vector<std::byte> payload(reply.size_bytes);
    error = socket.read(payload);
    if (error) {
      note(endpoint, fmt::format("its answer broke off ({})", error.message()));
      return std::nullopt;
    }
    if (reply.failed != 0) throw told_error(reply, payload);
    return placed(contacts_in(payload), endpoint);
  }

  void check_reply(const Reply& reply, const Tcp::endpoint& endpoint) const {
    const std::uint64_t table = std::uint64_t{mine_.size} * sizeof(Contact);
    const bool known =
        reply.magic == kReplyMagic && reply.version == kProtocolVersion &&
        (reply.failed != 0 ? reply.size_bytes <= kMaxReplyText : reply.size_bytes == table);
    if (known) return;
    throw Error(ErrorCode::config,
                fmt::format("what answers rank {} at {} ({}) is not rank 0 of this launch: another "
                            "program has that port, or rank 0 runs another build; set MASTER_PORT "
                            "to a free port for all ranks",
                            mine_.rank, meeting_point(launch_), tcp::text_of(endpoint)));
  }

  static Error told_error(const Reply& reply, std::span<const std::byte> payload) {
    const bool config = reply.code == static_cast<std::uint32_t>(ErrorCode::config);
    return Error(config ? ErrorCode::config : ErrorCode::rank_lost,
                 std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
  }

  // Fills in rank 0's address: the one under which this rank has just reached it.
  static std::vector<Contact> placed(std::vector<Contact> contacts, const Tcp::endpoint& endpoint) {
    for (Contact& contact : contacts) {
      const std::size_t count = std::min<std::size_t>(contact.address_count, kMaxAddresses);
      for (std::size_t i = 0; i < count; ++i) {
        if (contact.addresses[i] == WireAddress{}) {
          contact.addresses[i] = to_wire(endpoint.address());
        }
      }
    }
    return contacts;
  }

  void note(const Tcp::endpoint& endpoint, std::string_view what) {
    last_ = fmt::format("{}: {}", tcp::text_of(endpoint), what);
  }

  milliseconds time_left() const {
    const auto left = start_ + timeout_ - Clock::now();
    return std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(1));
  }

  Error give_up_error() const {
    if (unresolved_) {
      return Error(ErrorCode::config,
                   fmt::format("rank {} cannot find the host MASTER_ADDR=\"{}\" ({}), which it "
                               "tried for {}; set MASTER_ADDR to a name or address of rank 0's "
                               "host that this host knows",
                               mine_.rank, launch_.master_addr, last_, text_of(timeout_)));
    }
    return Error(ErrorCode::rank_lost,
                 fmt::format("rank {} could not reach rank 0 at {} within {} ({}): is rank 0 "
                             "running, do MASTER_ADDR and MASTER_PORT name its host and port, and "
                             "does a firewall let them through?",
                             mine_.rank, meeting_point(launch_), text_of(timeout_), last_),
                 {.rank = Rank{0}});
  }

  Error silence_error(const Tcp::endpoint& endpoint) const {
    return Error(
        ErrorCode::rank_lost,
        fmt::format("rank {} reached {} ({}) and got no answer within {}: rank 0 hangs, or "
                    "another program has that port; set MASTER_PORT to a free port for "
                    "all ranks",
                    mine_.rank, meeting_point(launch_), tcp::text_of(endpoint),
                    text_of(answer_limit(timeout_))),
        {.rank = Rank{0}});
  }

  const Launch& launch_;
  const Contact& mine_;
  const Clock::time_point start_;
  const milliseconds timeout_;
  bool unresolved_ = false;
  std::string last_ = "no attempt was made";
};

}  // namespace

Contact introduce(std::uint32_t rank, std::uint32_t size, std::optional<std::uint32_t> host_rank,
                  std::uint16_t port) {
  Contact contact;
  contact.rank = rank;
  contact.size = size;
  contact.host_rank = host_rank.value_or(kUnknownHostRank);
  contact.token = draw_token();
  contact.process = identify_this_process();
  // Not terminated when the name is longer.
  if (::gethostname(contact.host_name, sizeof(contact.host_name) - 1) != 0) {
    contact.host_name[0] = '?';
  }
  contact.port = port;
  for (const asio::ip::address& address : own_addresses()) {
    if (contact.address_count == kMaxAddresses) break;
    contact.addresses[contact.address_count++] = to_wire(address);
  }
  return contact;
}

std::vector<Contact> meet(const Launch& launch, const Contact& mine, milliseconds timeout) {
  if (mine.rank == 0) return MeetingHost(launch, mine, timeout).run();
  return MeetingGuest(launch, mine, timeout).run();
}

std::vector<Contact> meet(const AllGather& all_gather, const Contact& mine) {
  const std::vector<std::byte> bytes = all_gather(bytes_of(mine));
  if (bytes.size() != std::size_t{mine.size} * sizeof(Contact)) {
    throw Error(ErrorCode::diverged,
                fmt::format("an all-gather of {} bytes among {} ranks gave {}; do all run the same "
                            "build?",
                            sizeof(Contact), mine.size, bytes.size()));
  }
  std::vector<Contact> contacts = contacts_in(bytes);
  for (std::uint32_t rank = 0; rank < contacts.size(); ++rank) {
    Contact& contact = contacts[rank];
    contact.host_name[sizeof(contact.host_name) - 1] = '\0';
    if (contact.magic != kContactMagic || contact.rank != rank) {
      throw Error(ErrorCode::diverged,
                  fmt::format("what an all-gather brought from rank {} are not its addresses; all "
                              "ranks must make the same calls, in the same build",
                              rank),
                  {.rank = Rank{rank}});
    }
    if (const auto fault = find_fault(contact, mine)) throw Error(*fault);
  }
  return contacts;
}

std::string describe(const Contact& contact) {
  const std::string_view name(contact.host_name,
                              ::strnlen(contact.host_name, sizeof(contact.host_name)));
  return fmt::format("pid {} on {}", contact.process.pid, name);
}

bool on_one_host(const Contact& a, const Contact& b) {
  if (a.process.host[0] != '\0' || b.process.host[0] != '\0') {
    return std::memcmp(a.process.host, b.process.host, sizeof(a.process.host)) == 0;
  }
  return std::memcmp(a.host_name, b.host_name, sizeof(a.host_name)) == 0;
}

std::vector<Tcp::endpoint> endpoints_of(const Contact& contact, const Contact& mine) {
  std::vector<Tcp::endpoint> endpoints;
  if (on_one_host(contact, mine)) {
    endpoints.emplace_back(asio::ip::address_v4::loopback(), contact.port);
    endpoints.emplace_back(asio::ip::address_v6::loopback(), contact.port);
  }
  const std::size_t count = std::min<std::size_t>(contact.address_count, kMaxAddresses);
  for (std::size_t i = 0; i < count; ++i) {
    const Tcp::endpoint endpoint(from_wire(contact.addresses[i]), contact.port);
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end()) {
      endpoints.push_back(endpoint);
    }
  }
  return endpoints;
}

}  // namespace strata::tcp
