#include "mpi/control_plane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace strata::mpi {
namespace {

// Closing has a tag of its own, so that a peer that waits for something else can see it.
constexpr int kCallTag = 1;
constexpr int kCloseTag = 2;
constexpr int kNoticeTag = 3;

// A notice must fit the eager path of every transport: it is sent without waiting.
constexpr std::size_t kMaxNotice = 512;
// Often enough to report a death within a fraction of a second, rarely enough to cost nothing.
constexpr std::chrono::milliseconds kCheckPeriod{50};

int tag_of(ControlCall which) { return which == ControlCall::close ? kCloseTag : kCallTag; }

std::vector<ProcessIdentity> gather_identities(MPI_Comm comm, std::uint32_t size) {
  const ProcessIdentity mine = identify_this_process();
  std::vector<ProcessIdentity> all(size);
  check(MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, comm),
        "MPI_Allgather");
  return all;
}

}  // namespace

// One call's messages. MPI holds pointers into it until every request is done.
struct ControlPlane::Messages {
  int tag = kCallTag;
  std::vector<std::byte> outgoing;
  std::vector<std::vector<std::byte>> incoming;  // by rank
  std::vector<bool> accepted;                    // by rank: the receive was started
  std::vector<MPI_Request> sends;                // by rank
  std::vector<MPI_Request> receives;             // by rank
};

ControlPlane::ControlPlane(MPI_Comm comm, const FirstFailure& failure)
    : comm_(comm), failure_(failure) {
  const auto lock = MpiProcess::instance().lock();
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int value = 0;
  check(MPI_Comm_rank(comm_, &value), "MPI_Comm_rank");
  rank_ = static_cast<std::uint32_t>(value);
  check(MPI_Comm_size(comm_, &value), "MPI_Comm_size");
  size_ = static_cast<std::uint32_t>(value);
  identities_ = gather_identities(comm_, size_);
}

void ControlPlane::free() {
  const auto lock = MpiProcess::instance().lock();
  check(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

std::vector<std::byte> ControlPlane::call(ControlCall which, std::span<const std::byte> mine) {
  failure_.throw_if_set();
  const auto messages = std::make_shared<Messages>();
  const auto missing = [&] {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t peer = 0; peer < size_; ++peer) {
      const bool done = messages->accepted[peer] && messages->receives[peer] == MPI_REQUEST_NULL &&
                        messages->sends[peer] == MPI_REQUEST_NULL;
      if (!done) ranks.push_back(peer);
    }
    return ranks;
  };
  try {
    start(*messages, which, mine);
    wait(
        name_of(which), [&] { return advance(*messages); }, missing);
  } catch (...) {
    MpiProcess::instance().keep_alive(messages);
    throw;
  }
  return unpack(*messages, which, mine);
}

void ControlPlane::start(Messages& messages, ControlCall which, std::span<const std::byte> mine) {
  messages.tag = tag_of(which);
  messages.outgoing =
      pack_control({static_cast<std::uint32_t>(which), sequence_++, mine.size()}, mine);
  messages.incoming.resize(size_);
  messages.accepted.resize(size_);
  messages.sends.assign(size_, MPI_REQUEST_NULL);
  messages.receives.assign(size_, MPI_REQUEST_NULL);
  messages.incoming[rank_] = messages.outgoing;
  messages.accepted[rank_] = true;
  const auto lock = MpiProcess::instance().lock();
  for (std::uint32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    check(MPI_Isend(messages.outgoing.data(), static_cast<int>(messages.outgoing.size()), MPI_BYTE,
                    static_cast<int>(peer), messages.tag, comm_, &messages.sends[peer]),
          "MPI_Isend");
  }
}

bool ControlPlane::advance(Messages& messages) {
  const auto lock = MpiProcess::instance().lock();
  bool all_accepted = true;
  for (std::uint32_t peer = 0; peer < size_; ++peer) {
    if (!messages.accepted[peer]) accept(messages, peer);
    all_accepted = all_accepted && messages.accepted[peer];
  }
  const int count = static_cast<int>(size_);
  int received = 0;
  int sent = 0;
  check(MPI_Testall(count, messages.receives.data(), &received, MPI_STATUSES_IGNORE),
        "MPI_Testall");
  check(MPI_Testall(count, messages.sends.data(), &sent, MPI_STATUSES_IGNORE), "MPI_Testall");
  return all_accepted && received != 0 && sent != 0;
}

// Starts to receive the peer's message if it has arrived. Its size is the peer's choice: a peer
// that diverged may have sent any.
void ControlPlane::accept(Messages& messages, std::uint32_t peer) {
  int arrived = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check(MPI_Improbe(static_cast<int>(peer), messages.tag, comm_, &arrived, &message, &status),
        "MPI_Improbe");
  if (arrived == 0) return;
  int size = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
  messages.incoming[peer].resize(static_cast<std::size_t>(size));
  check(MPI_Imrecv(messages.incoming[peer].data(), size, MPI_BYTE, &message,
                   &messages.receives[peer]),
        "MPI_Imrecv");
  messages.accepted[peer] = true;
}

std::vector<std::byte> ControlPlane::unpack(const Messages& messages, ControlCall which,
                                            std::span<const std::byte> mine) const {
  const ControlHeader header{static_cast<std::uint32_t>(which), sequence_ - 1, mine.size()};
  std::vector<std::byte> all;
  all.reserve(size_ * mine.size());
  for (std::uint32_t peer = 0; peer < size_; ++peer) {
    const auto bytes = unpack_control(messages.incoming[peer], peer, header, rank_);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Backoff::Clock::duration ControlPlane::check_period() const {
  return std::min<Backoff::Clock::duration>(kCheckPeriod, std::chrono::milliseconds(timeout_ms_));
}

std::optional<Error> ControlPlane::find_loss(std::string_view what,
                                             const std::vector<std::uint32_t>& missing,
                                             Backoff::Clock::duration waited) {
  if (const auto error = failure_.get()) return error;
  if (const auto error = find_notice()) return error;
  for (const std::uint32_t peer : missing) {
    const ProcessIdentity& identity = identities_[peer];
    if (can_watch(identities_[rank_], identity) && has_ended(identity)) {
      return Error(ErrorCode::rank_lost,
                   fmt::format("rank {} is lost: its process {} ended while rank {} waited for it "
                               "in {}; look for its last message",
                               peer, identity.pid, rank_, what),
                   {.rank = Rank{peer}});
    }
    // A peer that closes waits for us to close too; if we wait for more, it left too early.
    if (what != name_of(ControlCall::close) && has_closed(peer)) {
      return closed_error(peer, rank_, what);
    }
  }
  const auto timeout = std::chrono::milliseconds(timeout_ms_);
  if (waited < timeout || missing.empty()) return std::nullopt;
  return timeout_error(missing, rank_, what, timeout);
}

std::optional<Error> ControlPlane::find_notice() {
  char reason[kMaxNotice];
  int arrived = 0;
  int size = 0;
  MPI_Status status;
  const auto lock = MpiProcess::instance().lock();
  check(MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, comm_, &arrived, &status), "MPI_Iprobe");
  if (arrived == 0) return std::nullopt;
  check(MPI_Get_count(&status, MPI_CHAR, &size), "MPI_Get_count");
  const int source = status.MPI_SOURCE;
  check(MPI_Recv(reason, sizeof(reason), MPI_CHAR, source, kNoticeTag, comm_, MPI_STATUS_IGNORE),
        "MPI_Recv");
  told_ = true;
  return gave_up_error(static_cast<std::uint32_t>(source),
                       std::string_view(reason, static_cast<std::size_t>(size)));
}

bool ControlPlane::has_closed(std::uint32_t peer) {
  int arrived = 0;
  const auto lock = MpiProcess::instance().lock();
  check(MPI_Iprobe(static_cast<int>(peer), kCloseTag, comm_, &arrived, MPI_STATUS_IGNORE),
        "MPI_Iprobe");
  return arrived != 0;
}

void ControlPlane::give_up(std::string_view reason) noexcept try {
  if (told_.exchange(true)) return;
  struct Notice {
    std::string text;
    std::vector<MPI_Request> requests;
  };
  const auto notice = std::make_shared<Notice>();
  notice->text = reason.substr(0, kMaxNotice);
  notice->requests.assign(size_, MPI_REQUEST_NULL);
  MpiProcess::instance().keep_alive(notice);
  const auto lock = MpiProcess::instance().lock();
  for (std::uint32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    // One peer's failure must not keep the others uninformed.
    [[maybe_unused]] const int result =
        MPI_Isend(notice->text.data(), static_cast<int>(notice->text.size()), MPI_CHAR,
                  static_cast<int>(peer), kNoticeTag, comm_, &notice->requests[peer]);
  }
} catch (const std::exception&) {
  // Out of memory or out of MPI: the peers' own timeouts will tell them.
}

}  // namespace strata::mpi
