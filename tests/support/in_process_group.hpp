// What the in-process ranks of one communicator share: the places where they meet, and who is
// gone. Internal to in_process_ranks.cpp.
//
// A rank that enters meeting k brings a value and leaves with everyone's, once all have entered.
// Values stand in two sets: set k % 2 is written again only when all ranks have left meeting k.
// While ranks move bytes between two meetings they read each other's memory; nobody gives up a
// meeting during that time, since what follows may free the memory.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/first_failure.hpp"
#include "ports/host_communicator.hpp"

namespace strata::test {

// One lock for a world and everything split from it.
struct InProcessHub {
  std::mutex mutex;
  std::condition_variable changed;
};

// A rank of the world, in whatever groups it takes part.
struct InProcessMember {
  bool killed = false;  // guarded by InProcessHub::mutex
};

struct ControlMessage {
  std::string_view call;
  std::vector<std::byte> bytes;
};

template <class Value>
class Meeting {
 public:
  explicit Meeting(std::uint32_t size) : entered_(size, 0), values_{} {
    for (auto& set : values_) set.resize(size);
  }

  std::uint64_t enter(std::uint32_t rank, Value value) {
    const std::uint64_t number = ++entered_[rank];
    values_[number % 2][rank] = std::move(value);
    return number;
  }
  bool has_entered(std::uint32_t rank, std::uint64_t number) const {
    return entered_[rank] >= number;
  }
  const std::vector<Value>& values(std::uint64_t number) const { return values_[number % 2]; }

 private:
  std::vector<std::uint64_t> entered_;
  std::array<std::vector<Value>, 2> values_;
};

// How one rank takes part in a meeting.
struct Attendance {
  std::uint32_t rank = 0;
  std::string_view what;
  std::chrono::milliseconds timeout{0};
  const FirstFailure* failure = nullptr;
  bool moves_bytes_after = false;  // equal on all ranks
};

class InProcessGroup {
 public:
  InProcessGroup(std::shared_ptr<InProcessHub> hub,
                 std::vector<std::shared_ptr<InProcessMember>> members, std::uint64_t seed);

  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  std::uint64_t seed() const { return seed_; }

  // Throws Error(rank_lost) when a peer is lost or gave up, or this rank was killed.
  const std::vector<const Collective*>& meet(const Attendance& attendance,
                                             const Collective* collective);
  const std::vector<ControlMessage>& meet(const Attendance& attendance, ControlMessage message);

  void kill(std::uint32_t rank);
  void give_up(std::uint32_t rank, std::string_view reason);
  // The rank's communicator is gone; its name in errors only.
  void depart(std::uint32_t rank);

  // The group of `ranks` of this one; the first caller of (number, color) makes it.
  std::shared_ptr<InProcessGroup> part(std::uint64_t number, std::uint32_t color,
                                       const std::vector<std::uint32_t>& ranks);

 private:
  template <class Value>
  const std::vector<Value>& meet_at(Meeting<Value>& meeting, const Attendance& attendance,
                                    Value value);
  std::optional<Error> find_loss(const Attendance& attendance,
                                 const std::vector<std::uint32_t>& missing) const;
  bool others_move(std::uint32_t rank) const;

  const std::shared_ptr<InProcessHub> hub_;
  const std::vector<std::shared_ptr<InProcessMember>> members_;
  const std::uint64_t seed_;

  // Guarded by hub_->mutex:
  Meeting<const Collective*> data_;
  Meeting<ControlMessage> control_;
  std::vector<char> moving_;                 // by rank
  std::vector<char> departed_;               // by rank
  std::vector<std::string> give_up_reason_;  // by rank; empty: it did not
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::shared_ptr<InProcessGroup>> parts_;
};

}  // namespace strata::test
