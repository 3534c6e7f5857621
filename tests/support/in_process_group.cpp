#include "support/in_process_group.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.hpp"

namespace strata::test {

InProcessGroup::InProcessGroup(std::shared_ptr<InProcessHub> hub,
                               std::vector<std::shared_ptr<InProcessMember>> members,
                               std::uint64_t seed)
    : hub_(std::move(hub)),
      members_(std::move(members)),
      seed_(seed),
      data_(size()),
      control_(size()),
      moving_(size(), 0),
      departed_(size(), 0),
      give_up_reason_(size()) {}

const std::vector<const Collective*>& InProcessGroup::meet(const Attendance& attendance,
                                                           const Collective* collective) {
  return meet_at(data_, attendance, collective);
}

const std::vector<ControlMessage>& InProcessGroup::meet(const Attendance& attendance,
                                                        ControlMessage message) {
  return meet_at(control_, attendance, std::move(message));
}

template <class Value>
const std::vector<Value>& InProcessGroup::meet_at(Meeting<Value>& meeting,
                                                  const Attendance& attendance, Value value) {
  const std::uint32_t rank = attendance.rank;
  const auto deadline = std::chrono::steady_clock::now() + attendance.timeout;
  bool timed_out = false;
  std::unique_lock lock(hub_->mutex);
  // The control plane of a rank does not end the moving of its stream.
  if (static_cast<void*>(&meeting) == static_cast<void*>(&data_)) moving_[rank] = 0;
  if (members_[rank]->killed) {
    hub_->changed.notify_all();
    throw Error(ErrorCode::rank_lost, "this rank was killed", {.rank = Rank{rank}});
  }
  const std::uint64_t number = meeting.enter(rank, std::move(value));
  const auto missing = [&] {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (!meeting.has_entered(peer, number)) ranks.push_back(peer);
    }
    return ranks;
  };
  if (attendance.moves_bytes_after && missing().empty()) {
    std::fill(moving_.begin(), moving_.end(), 1);
  }
  hub_->changed.notify_all();
  for (auto absent = missing(); !absent.empty(); absent = missing()) {
    auto loss = find_loss(attendance, absent);
    if (!loss && timed_out) {
      loss = Error(ErrorCode::rank_lost,
                   fmt::format("rank {} did not arrive in {} within {} ms", fmt::join(absent, ", "),
                               attendance.what, attendance.timeout.count()),
                   {.rank = Rank{absent.front()}});
    }
    if (loss) {
      hub_->changed.wait(lock, [&] { return !others_move(rank) || missing().empty(); });
      if (missing().empty()) break;  // the last one came after all
      throw Error(*loss);
    }
    timed_out = hub_->changed.wait_until(lock, deadline) == std::cv_status::timeout;
  }
  return meeting.values(number);
}

std::optional<Error> InProcessGroup::find_loss(const Attendance& attendance,
                                               const std::vector<std::uint32_t>& missing) const {
  if (attendance.failure->is_set()) return attendance.failure->get();
  if (members_[attendance.rank]->killed) {
    return Error(ErrorCode::rank_lost, "this rank was killed", {.rank = Rank{attendance.rank}});
  }
  for (const std::uint32_t peer : missing) {
    if (members_[peer]->killed) {
      return Error(ErrorCode::rank_lost,
                   fmt::format("rank {} is lost: it was killed while rank {} waited for it in {}",
                               peer, attendance.rank, attendance.what),
                   {.rank = Rank{peer}});
    }
  }
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (give_up_reason_[peer].empty()) continue;
    return Error(ErrorCode::rank_lost,
                 fmt::format("rank {} gave up: {}", peer, give_up_reason_[peer]),
                 {.rank = Rank{peer}});
  }
  for (const std::uint32_t peer : missing) {
    if (departed_[peer] != 0) {
      return Error(ErrorCode::rank_lost,
                   fmt::format("rank {} closed its communicator while rank {} waited for it in {}",
                               peer, attendance.rank, attendance.what),
                   {.rank = Rank{peer}});
    }
  }
  return std::nullopt;
}

bool InProcessGroup::others_move(std::uint32_t rank) const {
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer != rank && moving_[peer] != 0) return true;
  }
  return false;
}

void InProcessGroup::kill(std::uint32_t rank) {
  const std::lock_guard lock(hub_->mutex);
  members_[rank]->killed = true;
  hub_->changed.notify_all();
}

void InProcessGroup::give_up(std::uint32_t rank, std::string_view reason) {
  const std::lock_guard lock(hub_->mutex);
  // A rank that echoes a peer's reason would hide who gave up first; a killed one cannot tell.
  const bool first = std::all_of(give_up_reason_.begin(), give_up_reason_.end(),
                                 [](const std::string& other) { return other.empty(); });
  if (first && !members_[rank]->killed) {
    give_up_reason_[rank] = reason.empty() ? "no reason given" : reason;
  }
  hub_->changed.notify_all();
}

void InProcessGroup::depart(std::uint32_t rank) {
  const std::lock_guard lock(hub_->mutex);
  departed_[rank] = 1;
  moving_[rank] = 0;
  hub_->changed.notify_all();
}

std::shared_ptr<InProcessGroup> InProcessGroup::part(std::uint64_t number, std::uint32_t color,
                                                     const std::vector<std::uint32_t>& ranks) {
  const std::lock_guard lock(hub_->mutex);
  std::shared_ptr<InProcessGroup>& group = parts_[{number, color}];
  if (!group) {
    std::vector<std::shared_ptr<InProcessMember>> members;
    for (const std::uint32_t rank : ranks) members.push_back(members_[rank]);
    group = std::make_shared<InProcessGroup>(hub_, std::move(members),
                                             rng::at(seed_, number * 31 + color));
  }
  return group;
}

}  // namespace strata::test
