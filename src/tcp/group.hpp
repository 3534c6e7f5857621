// What this rank knows about one control plane: the messages that have come, who has closed or is
// lost, the first failure. tcp/control_plane.hpp tells what the functions promise.
//
// Ranks are positions in the group; a function that says `peer of the mesh` means the other
// numbering. All state is guarded by the mesh's mutex.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ports/control_messages.hpp"
#include "strata/error.hpp"
#include "tcp/mesh.hpp"
#include "tcp/wire.hpp"

namespace strata::tcp {

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(Mesh& mesh, std::uint64_t id, std::vector<std::uint32_t> members);

  std::uint64_t id() const { return id_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  // Ranks of the mesh, by rank of the group.
  const std::vector<std::uint32_t>& members() const { return members_; }

  std::vector<std::byte> call(ControlCall which, std::span<const std::byte> mine);
  // How many calls were made before: an identity for what the last one led to.
  std::uint32_t sequence() const;

  void give_up(std::string_view reason);
  // Records the failure, tells the peers, and returns what failure() is then.
  Error fail(const Error& error);

  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;
  std::optional<Error> failure() const;
  void on_failure(std::function<void(const Error&)> function);

  void set_progress(std::uint64_t collectives) { progress_ = collectives; }
  std::vector<std::optional<std::uint64_t>> ask_progress(std::chrono::milliseconds wait);

  std::vector<std::uint32_t> leaving() const;

  Error loss_of(std::uint32_t peer, std::string_view what);

  // Says good-bye to the peers; no function of on_failure() runs any more. Blocks while one does.
  void close();

  // For the mesh, about a peer of the mesh. False when the frame makes no sense.
  bool deliver_locked(std::uint32_t peer, FrameKind kind, std::span<const std::byte> body);
  void lose_locked(std::uint32_t peer, const std::string& why);
  void leave_locked(std::uint32_t peer);

 private:
  using Lock = std::unique_lock<std::mutex>;

  // A peer, by rank of the group.
  struct Member {
    std::deque<std::vector<std::byte>> calls;  // messages that no call() has taken
    bool closed = false;                       // it said good-bye
    bool lost = false;
  };

  std::optional<std::uint32_t> position_of(std::uint32_t peer) const;
  std::vector<std::uint32_t> peers() const;
  std::vector<std::byte> call_locked(Lock& lock, ControlCall which,
                                     std::span<const std::byte> mine);
  // Takes what has come of one call; throws Error(diverged).
  void collect_locked(const ControlHeader& header,
                      std::vector<std::optional<std::vector<std::byte>>>& arrived);
  void check_missing_locked(const std::vector<std::uint32_t>& missing, ControlCall which) const;
  void fail_locked(const Error& error);
  void tell_locked(ErrorCode code, std::string_view text);
  void run_function() noexcept;
  bool accept_notice_locked(std::uint32_t rank, std::span<const std::byte> body);
  bool answer_locked(std::uint32_t rank, std::span<const std::byte> body);
  bool accept_answer_locked(std::uint32_t rank, std::span<const std::byte> body);
  std::string name_of_member(std::uint32_t rank) const;

  Mesh& mesh_;
  const std::uint64_t id_;
  const std::vector<std::uint32_t> members_;
  std::uint32_t rank_ = 0;
  std::atomic<std::uint64_t> progress_ = 0;

  // Guarded by the mesh's mutex:
  std::vector<Member> states_;  // by rank
  std::chrono::milliseconds timeout_{60'000};
  std::uint32_t sequence_ = 0;
  std::optional<Error> failure_;
  bool told_ = false;  // a notice was sent or received: the group knows
  std::function<void(const Error&)> function_;
  bool function_runs_ = false;
  std::uint64_t last_question_ = 0;
  std::map<std::uint64_t, std::vector<std::optional<std::uint64_t>>> questions_;
};

}  // namespace strata::tcp
