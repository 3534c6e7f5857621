#include "mpi/mpi_process.hpp"

#include <fmt/format.h>

namespace strata::mpi {

void check(int result, std::string_view call, ErrorCode code) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(result, text, &length) != MPI_SUCCESS) length = 0;
  throw Error(code, fmt::format("{} failed with code {}: {}", call, result,
                                std::string_view(text, static_cast<std::size_t>(length))));
}

MpiProcess& MpiProcess::instance() {
  // Never destroyed: a message that was given up may outlive every static object.
  static auto* const process = new MpiProcess;
  return *process;
}

void MpiProcess::enter() {
  const std::lock_guard guard(mutex_);
  int finalised = 0;
  check(MPI_Finalized(&finalised), "MPI_Finalized", ErrorCode::not_supported);
  if (finalised != 0 || left_for_good_) {
    throw Error(ErrorCode::not_supported,
                "MPI cannot start twice in a process; call MPI_Init_thread yourself, or keep the "
                "first communicator");
  }
  int initialised = 0;
  int level = MPI_THREAD_SINGLE;
  check(MPI_Initialized(&initialised), "MPI_Initialized", ErrorCode::not_supported);
  if (initialised != 0) {
    check(MPI_Query_thread(&level), "MPI_Query_thread", ErrorCode::not_supported);
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread",
          ErrorCode::not_supported);
    initialised_here_ = true;
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorCode::not_supported,
                fmt::format("MPI runs at thread level {}; initialise it with "
                            "MPI_THREAD_SERIALIZED or higher",
                            level));
  }
  ++communicators_;
}

void MpiProcess::leave(bool clean) {
  const std::lock_guard guard(mutex_);
  --communicators_;
  unclean_ = unclean_ || !clean;
  if (communicators_ > 0 || !initialised_here_ || unclean_ || left_for_good_) return;
  // Called from destructors, and the process is done with MPI either way: a failure has no use.
  [[maybe_unused]] const int result = MPI_Finalize();
}

std::unique_lock<std::mutex> MpiProcess::lock() {
  std::unique_lock guard(mutex_);
  if (left_for_good_) {
    throw Error(ErrorCode::closed,
                "this process stopped using MPI when a rank was lost; restart the program");
  }
  return guard;
}

void MpiProcess::keep_alive(std::shared_ptr<void> messages) {
  const std::lock_guard guard(mutex_);
  kept_alive_.push_back(std::move(messages));
}

}  // namespace strata::mpi
