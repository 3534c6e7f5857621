#include "uring/ring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.hpp"

namespace strata::uring {
namespace {

// A registered buffer holds at most 1 GiB (io_uring_register(2)).
constexpr std::size_t kMostPieceBytes = std::size_t{1} << 30;

// From what serves best to what every kernel has. A kernel that does not know a flag answers
// EINVAL.
constexpr std::array kFlagChoices = {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
    unsigned{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG},
#endif
#if defined(IORING_SETUP_COOP_TASKRUN)
    unsigned{IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG},
#endif
    0U};

int set_up(std::uint32_t entries, io_uring& ring) {
  int result = -EINVAL;
  for (const unsigned flags : kFlagChoices) {
    result = io_uring_queue_init(entries, &ring, flags);
    if (result != -EINVAL) break;
  }
  return result;
}

}  // namespace

Error setup_error(int errnum) {
  const char* advice = "";
  if (errnum == EPERM) advice = " (is kernel.io_uring_disabled set, or a container forbidding it?)";
  if (errnum == ENOSYS) advice = " (this kernel has no io_uring)";
  if (errnum == ENOMEM) advice = " (raise `ulimit -l`)";
  if (errnum == EMFILE) advice = " (raise `ulimit -n`)";
  return {ErrorCode::not_supported, fmt::format("io_uring_setup failed{}", advice),
          ErrorContext{.errnum = errnum}};
}

Ring::Ring(std::uint32_t entries, int completion_fd) {
  const int result = set_up(entries, ring_);
  if (result < 0) throw setup_error(-result);
  const int registered = io_uring_register_eventfd(&ring_, completion_fd);
  if (registered < 0) {
    io_uring_queue_exit(&ring_);
    throw setup_error(-registered);
  }
}

Ring::~Ring() {
  if (belongs_to_this_thread()) {
    // At once instead of in the background, so that locked memory and files are free again.
    if (!pieces_.empty()) io_uring_unregister_buffers(&ring_);
    if (!files_.empty()) io_uring_unregister_files(&ring_);
  }
  io_uring_queue_exit(&ring_);
}

bool Ring::register_files(std::span<const int> fds) {
  STRATA_ASSERT(files_.empty(), "files are registered once");
  if (fds.empty() ||
      io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size())) < 0) {
    return false;
  }
  files_.assign(fds.begin(), fds.end());
  return true;
}

void Ring::forget_file(std::size_t index) {
  if (!has_file(index)) return;
  files_[index] = -1;
  const int none = -1;
  const int result = io_uring_register_files_update(&ring_, static_cast<unsigned>(index), &none, 1);
  STRATA_ASSERT(result == 1, fmt::format("io_uring_register_files_update: {}", result));
}

int Ring::register_memory(std::span<std::byte> memory) {
  STRATA_ASSERT(pieces_.empty(), "memory is registered once");
  std::vector<iovec> vectors;
  while (!memory.empty()) {
    const auto piece = memory.first(std::min(memory.size(), kMostPieceBytes));
    vectors.push_back({piece.data(), piece.size()});
    pieces_.push_back(piece);
    memory = memory.subspan(piece.size());
  }
  if (vectors.empty()) return 0;
  const int result =
      io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
  if (result < 0) pieces_.clear();
  return result < 0 ? -result : 0;
}

int Ring::piece_of(const std::byte* data, std::size_t size) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::span<std::byte> piece = pieces_[i];
    if (data >= piece.data() && data + size <= piece.data() + piece.size()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

io_uring_sqe& Ring::prepare() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  STRATA_ASSERT(entry != nullptr, "more operations than the ring was made for");
  return *entry;
}

void Ring::prepare_pause(std::uint64_t user_data) {
  io_uring_sqe& entry = prepare();
  io_uring_prep_timeout(&entry, &pause_, 0, 0);
  entry.user_data = user_data;
}

bool Ring::submit() {
  while (has_unsubmitted()) {
    const int taken = io_uring_submit(&ring_);
    if (taken > 0 || taken == -EINTR) continue;
    // No memory for requests, or completions that were not fetched yet (io_uring_enter(2)).
    if (taken == 0 || taken == -EAGAIN || taken == -EBUSY) return false;
    STRATA_ASSERT(false, fmt::format("io_uring_enter: errno {}", -taken));
  }
  return true;
}

}  // namespace strata::uring
