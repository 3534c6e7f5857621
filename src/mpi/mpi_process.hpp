// This process's use of MPI. MPI itself is one per process, and so is this: the lock that makes
// MPI_THREAD_SERIALIZED enough, the count of communicators that decides who finalises, and the
// memory of messages that were given up.
//
// After a failure a message can be left half-way, and any later MPI call of this process might
// still move its bytes. Small control messages are kept alive for that (keep_alive()); when the
// bytes belong to a caller, leave_for_good() forbids every further MPI call instead.
// Thread: any.
#pragma once

#include <mpi.h>

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "strata/error.hpp"

namespace strata::mpi {

// Throws unless `result` is MPI_SUCCESS. `call` is the MPI function's name.
void check(int result, std::string_view call, ErrorCode code = ErrorCode::rank_lost);

class MpiProcess {
 public:
  static MpiProcess& instance();

  // Initialises MPI if nobody has. Throws Error(not_supported) when MPI was finalised, or was
  // initialised without MPI_THREAD_SERIALIZED. Each enter() is paired with one leave().
  void enter();

  // `clean` is false after a failure: then MPI_Finalize, which waits for all ranks, is never
  // called by us. The launcher reports such a process as one that ended without finalising.
  void leave(bool clean);

  // Holds off every other MPI call. Throws Error(closed) after leave_for_good(). Short sections
  // only: nobody waits for a peer while holding it, unless all peers are known to arrive.
  std::unique_lock<std::mutex> lock();

  // Keeps the memory of unfinished messages until the process ends.
  void keep_alive(std::shared_ptr<void> messages);

  // Pre: the caller holds lock().
  void leave_for_good() { left_for_good_ = true; }

 private:
  MpiProcess() = default;

  std::mutex mutex_;
  // Guarded by mutex_:
  int communicators_ = 0;
  bool initialised_here_ = false;
  bool unclean_ = false;
  bool left_for_good_ = false;
  std::vector<std::shared_ptr<void>> kept_alive_;
};

}  // namespace strata::mpi
