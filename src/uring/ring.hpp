// One io_uring instance (io_uring(7)) with the files and the memory that are registered with it.
// It serves the thread that made it: the kernel then needs no locks and runs completions only when
// that thread asks (IORING_SETUP_SINGLE_ISSUER and _DEFER_TASKRUN, where the kernel has them).
//
// Ownership: borrows files and memory. The destructor may run on any thread once nothing is in
// flight; the kernel lets go of the files a little later.
// Thread: the one that made it, but for the destructor.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "strata/error.hpp"

namespace strata::uring {

// The one place where a negative result of io_uring's set-up becomes an Error that says what to do.
[[nodiscard]] Error setup_error(int errnum);

class Ring {
 public:
  // `entries`: operations in flight at most. Completions make `completion_fd` (an eventfd)
  // readable. Throws setup_error().
  Ring(std::uint32_t entries, int completion_fd);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool belongs_to_this_thread() const { return owner_ == std::this_thread::get_id(); }

  // Lets requests name files by their index in `fds`. False where the kernel refuses
  // (RLIMIT_NOFILE counts them again): requests then name descriptors.
  bool register_files(std::span<const int> fds);
  void forget_file(std::size_t index);
  bool has_file(std::size_t index) const { return index < files_.size() && files_[index] >= 0; }

  // Pins the memory once. Returns 0 or the errno; ENOMEM: beyond RLIMIT_MEMLOCK.
  int register_memory(std::span<std::byte> memory);
  // The index of the registered piece that holds [data, data + size), or -1.
  int piece_of(const std::byte* data, std::size_t size) const;

  // An entry to fill in. Pre (asserted): at most `entries` operations are prepared or in flight.
  io_uring_sqe& prepare();
  // An operation that completes with -ETIME after a millisecond.
  void prepare_pause(std::uint64_t user_data);
  // Hands over what was prepared. False when the kernel takes no more for the moment; the rest
  // stays prepared.
  bool submit();
  bool has_unsubmitted() { return io_uring_sq_ready(&ring_) > 0; }

  // Calls `visit(user_data, result)` for each completion there is.
  template <class Visit>
  void reap(Visit&& visit);

 private:
  io_uring ring_{};
  __kernel_timespec pause_{.tv_sec = 0, .tv_nsec = 1'000'000};
  const std::thread::id owner_ = std::this_thread::get_id();
  std::vector<int> files_;                    // registered, by index; -1: none
  std::vector<std::span<std::byte>> pieces_;  // registered memory, by index
};

template <class Visit>
void Ring::reap(Visit&& visit) {
  constexpr unsigned kBatch = 32;
  io_uring_cqe* completions[kBatch];
  while (const unsigned count = io_uring_peek_batch_cqe(&ring_, completions, kBatch)) {
    for (unsigned i = 0; i < count; ++i) {
      const io_uring_cqe completion = *completions[i];
      visit(completion.user_data, completion.res);
    }
    io_uring_cq_advance(&ring_, count);
  }
}

}  // namespace strata::uring
