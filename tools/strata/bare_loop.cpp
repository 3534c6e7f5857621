#include "bare_loop.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "base/check.hpp"
#include "base/descriptor.hpp"
#include "strata/error.hpp"

namespace strata::tool {
namespace {

// From what serves best to what every kernel has; one that does not know a flag answers EINVAL.
constexpr std::array kFlagChoices = {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
    unsigned{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN},
#endif
    0U};

Descriptor open_direct(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC;
  Descriptor file(::open(path.c_str(), kFlags | O_DIRECT));
  if (!file && errno == EINVAL) file = Descriptor(::open(path.c_str(), kFlags));
  if (!file) throw Error(ErrorCode::io, "cannot open", {.errnum = errno, .path = path});
  return file;
}

class UringBareLoop final : public BareLoop {
 public:
  explicit UringBareLoop(const BareLoopOptions& options);
  ~UringBareLoop() override { io_uring_queue_exit(&ring_); }
  UringBareLoop(const UringBareLoop&) = delete;
  UringBareLoop& operator=(const UringBareLoop&) = delete;

  void run(std::span<const BareTransfer> transfers, Bytes tile, unsigned depth) override;
  bool memory_is_registered() const override { return memory_is_registered_; }

 private:
  // A transfer that failed, and its result.
  struct Failure {
    BareTransfer transfer;
    int result = 0;
  };

  void set_up_ring();
  void register_files();
  void prepare(const BareTransfer& transfer, Bytes tile, std::uint64_t piece);
  void submit_and_wait();
  [[noreturn]] void fail(const Failure& failure, Bytes tile) const;

  const BareLoopOptions options_;
  std::vector<Descriptor> files_;
  io_uring ring_{};
  bool files_are_registered_ = false;
  bool memory_is_registered_ = false;
};

UringBareLoop::UringBareLoop(const BareLoopOptions& options) : options_(options) {
  for (const std::string& path : options_.paths) files_.push_back(open_direct(path));
  set_up_ring();
  register_files();
  if (options_.register_memory) {
    const iovec memory{options_.memory.data(), options_.memory.size()};
    memory_is_registered_ = io_uring_register_buffers(&ring_, &memory, 1) == 0;
  }
}

void UringBareLoop::set_up_ring() {
  int result = -EINVAL;
  for (const unsigned flags : kFlagChoices) {
    result = io_uring_queue_init(options_.depth, &ring_, flags);
    if (result != -EINVAL) break;
  }
  if (result < 0) {
    throw Error(ErrorCode::not_supported, "io_uring_setup failed", {.errnum = -result});
  }
}

void UringBareLoop::register_files() {
  std::vector<int> fds;
  for (const Descriptor& file : files_) fds.push_back(file.get());
  files_are_registered_ =
      io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size())) == 0;
}

void UringBareLoop::prepare(const BareTransfer& transfer, Bytes tile, std::uint64_t piece) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  STRATA_ASSERT(entry != nullptr, "more transfers than the ring was made for");
  std::byte* const data = options_.memory.data() + piece * tile.value;
  const int fd =
      files_are_registered_ ? static_cast<int>(transfer.file) : files_[transfer.file].get();
  const auto size = static_cast<unsigned>(tile.value);
  const std::uint64_t offset = transfer.offset_bytes;
  if (transfer.write && memory_is_registered_) {
    io_uring_prep_write_fixed(entry, fd, data, size, offset, 0);
  } else if (transfer.write) {
    io_uring_prep_write(entry, fd, data, size, offset);
  } else if (memory_is_registered_) {
    io_uring_prep_read_fixed(entry, fd, data, size, offset, 0);
  } else {
    io_uring_prep_read(entry, fd, data, size, offset);
  }
  if (files_are_registered_) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  entry->user_data = piece;
}

void UringBareLoop::submit_and_wait() {
  const int result = io_uring_submit_and_wait(&ring_, 1);
  const bool in_vain = result == -EINTR || result == -EAGAIN || result == -EBUSY;
  STRATA_ASSERT(result >= 0 || in_vain, fmt::format("io_uring_enter: errno {}", -result));
}

void UringBareLoop::run(std::span<const BareTransfer> transfers, Bytes tile, unsigned depth) {
  STRATA_ASSERT(depth <= options_.depth && depth * tile.value <= options_.memory.size(),
                "more transfers than announced");
  std::vector<BareTransfer> in_flight(depth);  // by piece of the memory
  std::optional<Failure> failure;
  std::size_t next = 0;
  unsigned running = 0;
  const auto start = [&](std::uint64_t piece) {
    if (failure || next == transfers.size()) return;
    in_flight[piece] = transfers[next++];
    prepare(in_flight[piece], tile, piece);
    ++running;
  };
  for (unsigned piece = 0; piece < depth; ++piece) start(piece);
  while (running > 0) {
    submit_and_wait();
    io_uring_cqe* completion = nullptr;
    while (io_uring_peek_cqe(&ring_, &completion) == 0) {
      const std::uint64_t piece = completion->user_data;
      const int result = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      --running;
      if (!failure && result != static_cast<int>(tile.value)) {
        failure = Failure{in_flight[piece], result};
      }
      start(piece);
    }
  }
  if (failure) fail(*failure, tile);
}

void UringBareLoop::fail(const Failure& failure, Bytes tile) const {
  const int errnum = failure.result < 0 ? -failure.result : 0;
  throw Error(io_error_code(errnum),
              fmt::format("the bare loop's {} failed", failure.transfer.write ? "write" : "read"),
              {.errnum = errnum,
               .path = options_.paths[failure.transfer.file],
               .offset_bytes = failure.transfer.offset_bytes,
               .size = tile});
}

}  // namespace

std::unique_ptr<BareLoop> make_bare_loop(const BareLoopOptions& options) {
  return std::make_unique<UringBareLoop>(options);
}

}  // namespace strata::tool
