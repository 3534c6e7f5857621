#include "tcp/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "tcp/rendezvous.hpp"

namespace strata::tcp {
namespace {

using std::chrono::milliseconds;

// A peer sends its next call only when it has this rank's last one: two can wait here.
constexpr std::size_t kMaxWaitingCalls = 4;
// An end that nobody explained yet is explained within this, or not at all.
constexpr milliseconds kExplanationLimit{1'000};
// Keeps deadlines inside the clock's range.
constexpr milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

std::string_view text_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class Value>
std::optional<Value> value_in(std::span<const std::byte> body) {
  if (body.size() != sizeof(Value)) return std::nullopt;
  Value value;
  std::memcpy(&value, body.data(), sizeof(value));
  return value;
}

}  // namespace

Group::Group(Mesh& mesh, std::uint64_t id, std::vector<std::uint32_t> members)
    : mesh_(mesh), id_(id), members_(std::move(members)), states_(members_.size()) {
  const auto own = position_of(mesh_.rank());
  STRATA_ASSERT(own.has_value(), "a rank opened a group that it is not in");
  rank_ = *own;
}

std::optional<std::uint32_t> Group::position_of(std::uint32_t peer) const {
  const auto found = std::find(members_.begin(), members_.end(), peer);
  if (found == members_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - members_.begin());
}

std::vector<std::uint32_t> Group::peers() const {
  std::vector<std::uint32_t> others;
  for (const std::uint32_t member : members_) {
    if (member != mesh_.rank()) others.push_back(member);
  }
  return others;
}

std::string Group::name_of_member(std::uint32_t rank) const {
  return fmt::format("rank {} ({})", rank, describe(mesh_.contacts()[members_[rank]]));
}

std::uint32_t Group::sequence() const {
  const std::lock_guard lock(mesh_.mutex());
  return sequence_;
}

std::vector<std::byte> Group::call(ControlCall which, std::span<const std::byte> mine) {
  STRATA_ASSERT(mine.size() <= kMaxControlBytes, "a control call is for small messages");
  Lock lock(mesh_.mutex());
  try {
    return call_locked(lock, which, mine);
  } catch (const Error& error) {
    fail_locked(error);
    tell_locked(error.code(), error.what());
    throw;
  }
}

std::vector<std::byte> Group::call_locked(Lock& lock, ControlCall which,
                                          std::span<const std::byte> mine) {
  if (failure_) throw Error(*failure_);
  const auto start = Clock::now();
  const ControlHeader header{static_cast<std::uint32_t>(which), sequence_++, mine.size()};
  std::vector<std::optional<std::vector<std::byte>>> arrived(size());
  arrived[rank_] = pack_control(header, mine);
  mesh_.send_locked(peers(), FrameKind::call, id_, *arrived[rank_]);
  for (;;) {
    // What a peer sent before it was lost still counts, and a call that does not match explains
    // more than the notice that follows it.
    collect_locked(header, arrived);
    std::vector<std::uint32_t> missing;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (!arrived[peer]) missing.push_back(peer);
    }
    if (missing.empty()) break;
    check_missing_locked(missing, which);
    if (Clock::now() >= start + timeout_) {
      throw timeout_error(missing, rank_, name_of(which), timeout_);
    }
    mesh_.changed().wait_until(lock, start + timeout_);
  }
  std::vector<std::byte> all;
  all.reserve(size() * mine.size());
  for (const auto& message : arrived) {
    all.insert(all.end(), message->begin() + sizeof(header), message->end());
  }
  return all;
}

void Group::collect_locked(const ControlHeader& header,
                           std::vector<std::optional<std::vector<std::byte>>>& arrived) {
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (arrived[peer] || states_[peer].calls.empty()) continue;
    arrived[peer] = std::move(states_[peer].calls.front());
    states_[peer].calls.pop_front();
    unpack_control(*arrived[peer], peer, header, rank_);
  }
}

void Group::check_missing_locked(const std::vector<std::uint32_t>& missing,
                                 ControlCall which) const {
  if (failure_) throw Error(*failure_);
  for (const std::uint32_t peer : missing) {
    if (states_[peer].closed) throw closed_error(peer, rank_, name_of(which));
  }
}

void Group::give_up(std::string_view reason) {
  const std::lock_guard lock(mesh_.mutex());
  fail_locked(Error(ErrorCode::rank_lost, fmt::format("this rank gave up: {}", reason),
                    {.rank = Rank{rank_}}));
  tell_locked(ErrorCode::rank_lost, reason);
}

Error Group::fail(const Error& error) {
  const std::lock_guard lock(mesh_.mutex());
  fail_locked(error);
  tell_locked(error.code(), error.what());
  return *failure_;
}

void Group::fail_locked(const Error& error) {
  if (failure_) return;
  failure_ = error;
  if (function_) mesh_.post([group = shared_from_this()] { group->run_function(); });
  mesh_.changed().notify_all();
}

void Group::tell_locked(ErrorCode code, std::string_view text) {
  if (std::exchange(told_, true)) return;
  text = text.substr(0, kMaxNoticeText);
  const Notice notice{static_cast<std::uint32_t>(code)};
  std::vector<std::byte> body(sizeof(notice) + text.size());
  std::memcpy(body.data(), &notice, sizeof(notice));
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(),
              body.begin() + sizeof(notice));
  mesh_.send_locked(peers(), FrameKind::give_up, id_, body);
}

void Group::set_timeout(milliseconds timeout) {
  const std::lock_guard lock(mesh_.mutex());
  timeout_ = std::clamp(timeout, milliseconds(0), kLongestTimeout);
  mesh_.changed().notify_all();
}

milliseconds Group::timeout() const {
  const std::lock_guard lock(mesh_.mutex());
  return timeout_;
}

std::optional<Error> Group::failure() const {
  const std::lock_guard lock(mesh_.mutex());
  return failure_;
}

void Group::on_failure(std::function<void(const Error&)> function) {
  {
    const std::lock_guard lock(mesh_.mutex());
    if (!failure_) {
      function_ = std::move(function);
      return;
    }
  }
  function(*failure_);  // which never changes again
}

void Group::run_function() noexcept {
  std::function<void(const Error&)> function;
  {
    const std::lock_guard lock(mesh_.mutex());
    function = std::exchange(function_, nullptr);
    if (!function) return;
    function_runs_ = true;
  }
  function(*failure_);
  const std::lock_guard lock(mesh_.mutex());
  function_runs_ = false;
  mesh_.changed().notify_all();
}

void Group::close() {
  Lock lock(mesh_.mutex());
  function_ = nullptr;
  mesh_.changed().wait(lock, [&] { return !function_runs_; });
  mesh_.send_locked(peers(), FrameKind::good_bye, id_, {});
  mesh_.close_group_locked(id_);
}

std::vector<std::optional<std::uint64_t>> Group::ask_progress(milliseconds wait) {
  const auto end = Clock::now() + std::clamp(wait, milliseconds(0), kLongestTimeout);
  Lock lock(mesh_.mutex());
  const Question question{++last_question_};
  auto& answers = questions_[question.number];
  answers.resize(size());
  answers[rank_] = progress_.load();
  mesh_.send_locked(peers(), FrameKind::ask, id_, bytes_of(question));
  mesh_.changed().wait_until(lock, end, [&] {
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (!answers[peer] && !states_[peer].closed && !states_[peer].lost) return false;
    }
    return true;
  });
  auto result = std::move(answers);
  questions_.erase(question.number);
  return result;
}

std::vector<std::uint32_t> Group::leaving() const {
  const Lock lock(mesh_.mutex());
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    const Member& member = states_[peer];
    const bool closes = std::any_of(member.calls.begin(), member.calls.end(), [](const auto& call) {
      ControlHeader header;
      std::memcpy(&header, call.data(), std::min(call.size(), sizeof(header)));
      return header.call == static_cast<std::uint32_t>(ControlCall::close);
    });
    if (member.closed || closes) ranks.push_back(peer);
  }
  return ranks;
}

Error Group::loss_of(std::uint32_t peer, std::string_view what) {
  Lock lock(mesh_.mutex());
  mesh_.changed().wait_for(lock, kExplanationLimit,
                           [&] { return failure_ || states_[peer].closed; });
  if (failure_) return *failure_;
  if (states_[peer].closed) return closed_error(peer, rank_, what);
  return Error(ErrorCode::rank_lost,
               fmt::format("the payload connection to {} broke while rank {} waited for it in {}; "
                           "look for its last message",
                           name_of_member(peer), rank_, what),
               {.rank = Rank{peer}});
}

bool Group::deliver_locked(std::uint32_t peer, FrameKind kind, std::span<const std::byte> body) {
  const auto rank = position_of(peer);
  if (!rank) return false;
  Member& member = states_[*rank];
  switch (kind) {
    case FrameKind::call:
      if (member.calls.size() >= kMaxWaitingCalls) return false;
      member.calls.emplace_back(body.begin(), body.end());
      return true;
    case FrameKind::give_up: return accept_notice_locked(*rank, body);
    case FrameKind::good_bye: member.closed = true; return true;
    case FrameKind::ask: return answer_locked(*rank, body);
    case FrameKind::answer: return accept_answer_locked(*rank, body);
    case FrameKind::leave: break;
  }
  return false;
}

bool Group::accept_notice_locked(std::uint32_t rank, std::span<const std::byte> body) {
  if (body.size() < sizeof(Notice)) return false;
  const auto notice = *value_in<Notice>(body.first(sizeof(Notice)));
  const bool diverged = notice.code == static_cast<std::uint32_t>(ErrorCode::diverged);
  told_ = true;
  fail_locked(gave_up_error(rank, text_in(body.subspan(sizeof(Notice))),
                            diverged ? ErrorCode::diverged : ErrorCode::rank_lost));
  return true;
}

bool Group::answer_locked(std::uint32_t rank, std::span<const std::byte> body) {
  const auto question = value_in<Question>(body);
  if (!question) return false;
  const Answer answer{question->number, progress_.load()};
  mesh_.send_locked({members_[rank]}, FrameKind::answer, id_, bytes_of(answer));
  return true;
}

bool Group::accept_answer_locked(std::uint32_t rank, std::span<const std::byte> body) {
  const auto answer = value_in<Answer>(body);
  if (!answer) return false;
  const auto found = questions_.find(answer->number);
  // Nobody waits for a late answer.
  if (found != questions_.end()) found->second[rank] = answer->progress;
  return true;
}

void Group::lose_locked(std::uint32_t peer, const std::string& why) {
  const auto rank = position_of(peer);
  if (!rank) return;
  states_[*rank].lost = true;
  if (states_[*rank].closed) return;
  fail_locked(Error(ErrorCode::rank_lost, fmt::format("{} {}", name_of_member(*rank), why),
                    {.rank = Rank{*rank}}));
}

void Group::leave_locked(std::uint32_t peer) {
  if (const auto rank = position_of(peer)) states_[*rank].closed = true;
}

}  // namespace strata::tcp
