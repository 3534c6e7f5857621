// NCCL between the threads of one process: cliques of communicators that share a unique id, and
// the collectives in which they meet. The stream of every rank runs a function that waits for its
// peers' function of the same number; whoever comes last moves the bytes of all.
//
// A communicator that does not block answers ncclInProgress a seeded number of times. Until it
// has answered ncclSuccess, its collectives are not on their streams at all.
// Thread: all of it is guarded by the runtime's mutex; changes are told to Runtime::changed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/standin/runtime.hpp"

namespace strata::test::standin {

enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast };

// One rank's part of a collective; all but the buffers must be equal on all ranks.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_gather;
  std::size_t count = 0;  // as passed
  ncclDataType_t dtype = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  // In the arena.
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
};

struct Comm;

// The ranks' parts of the n-th collective of a clique. A rank waits in it until it is done or the
// rank gives up.
struct Round {
  std::map<int, Collective> parts;  // of the ranks that are there
  bool done = false;
  bool dead = false;  // a rank left it, or its parts do not match: it never gets done
  int left = 0;
};

struct Clique {
  std::uint64_t number = 0;
  int size = 0;
  std::map<int, std::shared_ptr<Comm>> members;
  bool complete = false;  // all ranks have come
  bool dead = false;      // a rank gave up before
  ncclResult_t result = ncclSuccess;
  std::string message;  // why not, if so
  std::map<std::uint64_t, Round> rounds;
};

// A collective on its way to a stream.
struct Issue {
  std::shared_ptr<Comm> comm;
  std::shared_ptr<Stream> stream;
  Collective part;
  std::vector<Access> accesses;
};

struct Comm {
  enum class State : std::uint8_t { starting, ready, finalizing, finalized };

  std::uint64_t number = 0;
  std::shared_ptr<Clique> clique;
  int rank = 0;
  Gpu* gpu = nullptr;
  bool blocking = true;
  bool excused = false;
  State state = State::starting;
  ncclResult_t error = ncclSuccess;
  int polls = 0;             // how often it still answers ncclInProgress
  bool in_progress = false;  // ncclInProgress was its last answer
  bool aborted = false;
  std::vector<Issue> held;                      // until it answers ncclSuccess
  std::uint64_t issued = 0;                     // collectives on streams so far
  int running = 0;                              // of these, not over
  int inside = 0;                               // of these, meeting their peers now
  std::vector<std::pair<Gpu*, StreamId>> used;  // streams
  std::map<void*, AddressRange> registered;     // by handle
};

class Nccl {
 public:
  explicit Nccl(std::uint64_t seed) : seed_(seed) {}
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  HandleTable<Comm, ncclComm_t> comms{"communicator", 3};

  void break_rank(int rank, ncclResult_t error) { broken_[rank] = error; }
  bool is_broken(int rank) const { return broken_.contains(rank); }
  void hold_rank(int rank) { held_.insert(rank); }
  void tell_leaks(Runtime& runtime) const;
  // Whether a live communicator has registered some of these bytes.
  bool is_registered(const void* address, Bytes size) const;

  ncclUniqueId make_id(std::uint64_t run);
  // Null when no such id was made in this run.
  std::shared_ptr<Clique> clique(const ncclUniqueId& id) const;

  // How often a communicator answers ncclInProgress before it may answer ncclSuccess.
  int draw_polls();

  // The state of a communicator, without side effects.
  ncclResult_t error_of(const Comm& comm) const;
  // ncclSuccess, ncclInProgress or the error. Success puts what was held onto the streams; `poll`
  // counts as one of the answers.
  ncclResult_t settle(Runtime& runtime, const std::shared_ptr<Comm>& comm, bool poll);

 private:
  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  std::uint64_t ids_ = 0;
  std::map<std::string, std::shared_ptr<Clique>> cliques_;  // by the bytes of the id
  std::set<int> held_;                                      // ranks whose groups stay in progress
  std::map<int, ncclResult_t> broken_;                      // by rank
};

// Puts a collective onto its stream.
void enqueue_collective(Runtime& runtime, const Issue& issue);

// Group calls of the thread. Inside a group, both are kept until its end; outside, each is a group
// of one. A communicator that cannot start is removed, and `handle` set to null.
ncclResult_t start_in_group(Runtime& runtime, Runtime::Lock& lock, std::shared_ptr<Comm> comm,
                            ncclComm_t* handle);
ncclResult_t issue_in_group(Runtime& runtime, Runtime::Lock& lock, Issue issue);
// A call inside the group failed: its end returns this, and issues nothing.
void spoil_group(ncclResult_t error);

// The communicator of a handle. Refuses one that is unknown, destroyed or aborted.
std::shared_ptr<Comm> find_comm(Runtime& runtime, ncclComm_t handle);
// The same for calls that need one which is ready. Refuses one that has failed, too.
std::shared_ptr<Comm> find_ready_comm(Runtime& runtime, ncclComm_t handle);

// The bytes of a buffer in the arena. Refuses what is not inside one allocation of the device.
std::byte* device_buffer(Runtime& runtime, const Comm& comm, const void* address, std::size_t size,
                         std::string_view what);

template <class... Args>
[[noreturn]] void refuse_nccl(Runtime& runtime, ncclResult_t error,
                              fmt::format_string<Args...> format, Args&&... args) {
  runtime.violation(fmt::format(format, std::forward<Args>(args)...));
  throw NcclRefused{error};
}

// Frame of an NCCL entry point, as cuda_call().
ncclResult_t begin_nccl_call(Runtime& runtime, const char* name);
ncclResult_t end_nccl_call(ncclResult_t result);

template <class Body, class Excuse = NoExcuse>
ncclResult_t nccl_call(const char* name, Body&& body, Excuse&& excuse = {}) noexcept {
  Runtime* const runtime = current_run();
  if (runtime == nullptr) return ncclSystemError;
  Runtime::Lock lock(runtime->mutex());
  ncclResult_t result = begin_nccl_call(*runtime, name);
  if (result == ncclSuccess) {
    try {
      result = body(*runtime, lock);
    } catch (const NcclRefused& refused) {
      result = refused.error;
    } catch (const Refused&) {
      result = ncclUnhandledCudaError;
    }
  }
  if (!lock.owns_lock()) lock.lock();
  if (result != ncclSuccess && result != ncclInProgress) excuse(*runtime);
  return end_nccl_call(result);
}

}  // namespace strata::test::standin
