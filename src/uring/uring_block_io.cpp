#include "uring/uring_block_io.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "files/directory.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"
#include "uring/ring.hpp"

namespace strata {
namespace {

// One call moves at most 2 GiB less a page (read(2)).
constexpr std::uint64_t kMostCallBytes = std::uint64_t{1} << 30;

// Marks the tag of a pause; the slot stands in the lower half of a tag.
constexpr std::uint64_t kEndOfPause = std::uint64_t{1} << 32;

}  // namespace

UringBlockIo::UringBlockIo(Options options)
    : options_(std::move(options)),
      files_(options_.direct, options_.log),
      queue_(options_.depth),
      running_(options_.depth.requests) {
  for (std::uint32_t slot = options_.depth.requests; slot > 0;) free_slots_.push_back(--slot);
  // Only to see whether there can be one: it serves the thread that makes it.
  const uring::Ring probe(options_.depth.requests, results_ready_.descriptor());
  reserve_descriptor();
}

UringBlockIo::~UringBlockIo() {
  STRATA_ASSERT(queue_.running() == 0 || ring_->belongs_to_this_thread(),
                "the adapter ends on a thread that cannot wait for its requests");
  while (queue_.running() > 0) {
    results_ready_.wait();
    results_ready_.clear();
    reap();
    ring_->submit();
  }
}

void UringBlockIo::prepare_directory(const std::string& root, const std::string& directory,
                                     bool allow_tmpfs) {
  files::prepare_directory(root, directory, allow_tmpfs);
}

void UringBlockIo::remove_directory(const std::string& root, const std::string& directory) {
  files::remove_directory(root, directory);
}

FileId UringBlockIo::open(const FileSpec& spec) {
  const FileId id = files_.add(files_.open(spec));
  open_ids_.push_back(id);
  drop_idle_ring();  // the next one registers the new file as well
  return id;
}

void UringBlockIo::close(FileId file, bool remove) {
  std::erase(open_ids_, file);
  drop_idle_ring();
  if (ring_) ring_->forget_file(file.value);
  files_.close(file, remove);
}

void UringBlockIo::use_memory(std::span<std::byte> memory) {
  STRATA_ASSERT(queue_.running() == 0, "the memory changes while requests are in flight");
  memory_ = memory;
  drop_idle_ring();
}

void UringBlockIo::drop_idle_ring() {
  if (queue_.running() > 0 || !ring_) return;
  ring_.reset();
  reserve_descriptor();
}

// So that a process with few descriptors lacks one when it opens files and not in a step.
void UringBlockIo::reserve_descriptor() {
  for_next_ring_ = Descriptor(::fcntl(results_ready_.descriptor(), F_DUPFD_CLOEXEC, 0));
}

void UringBlockIo::make_ring() {
  for_next_ring_.close();
  // Twice the depth: a submission that the kernel cuts short leaves entries behind.
  ring_ = std::make_unique<uring::Ring>(2 * options_.depth.requests, results_ready_.descriptor());
  std::vector<int> fds;
  for (const FileId id : open_ids_) {
    fds.resize(std::max<std::size_t>(fds.size(), id.value + 1), -1);
    fds[id.value] = files_[id].descriptor.get();
  }
  ring_->register_files(fds);
  const int errnum = ring_->register_memory(memory_);
  memory_is_registered_ = errnum == 0 && !memory_.empty();
  if (errnum == 0 || std::exchange(told_unregistered_, true) || !options_.log) return;
  options_.log(LogLevel::warning,
               fmt::format("{} of staging memory cannot be registered with io_uring ({}; raise "
                           "`ulimit -l`): transfers cost more CPU",
                           format_bytes(Bytes{memory_.size()}), std::strerror(errnum)));
}

void UringBlockIo::submit(std::span<const IoRequest> requests) {
  for (const IoRequest& request : requests) {
    files_.start(request);
    queue_.push(request);
  }
  {
    const std::scoped_lock lock(tally_mutex_);
    tally_.submitted(requests.size(), clock_.now_ns());
  }
  start_requests();
}

void UringBlockIo::start_requests() {
  if (!queue_.can_start() && !(ring_ && ring_->has_unsubmitted())) return;
  if (ring_ && !ring_->belongs_to_this_thread()) {
    STRATA_ASSERT(queue_.running() == 0, "two threads submit at the same time");
    ring_.reset();
  }
  if (!ring_) {
    try {
      make_ring();
    } catch (const Error& error) {
      reserve_descriptor();
      fail_waiting(error.context().errnum);
      return;
    }
  }
  while (const std::optional<IoRequest> request = queue_.start_next()) {
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    running_[slot] = {*request, files::Transfer(request->op, request->size,
                                                files_[request->file].alignment.offset)};
    issue(slot);
  }
  // What the kernel does not take now is handed over at the next poll().
  if (!ring_->submit()) results_ready_.raise();
}

void UringBlockIo::fail_waiting(int errnum) {
  while (const std::optional<IoRequest> request = queue_.start_next()) {
    deliver(*request, -errnum);
  }
  results_ready_.raise();
}

void UringBlockIo::issue(std::uint32_t slot) {
  const auto& [request, transfer] = running_[slot];
  io_uring_sqe& entry = ring_->prepare();
  const bool registered_file = ring_->has_file(request.file.value);
  const int fd = registered_file ? static_cast<int>(request.file.value)
                                 : files_[request.file].descriptor.get();
  std::byte* const data = request.data + transfer.done();
  const std::uint64_t offset = request.offset_bytes + transfer.done();
  const auto size =
      static_cast<unsigned>(std::min(request.size.value - transfer.done(), kMostCallBytes));
  const int piece = ring_->piece_of(data, size);
  switch (request.op) {
    case IoOp::read:
      if (piece >= 0) {
        io_uring_prep_read_fixed(&entry, fd, data, size, offset, piece);
      } else {
        io_uring_prep_read(&entry, fd, data, size, offset);
      }
      break;
    case IoOp::write:
      if (piece >= 0) {
        io_uring_prep_write_fixed(&entry, fd, data, size, offset, piece);
      } else {
        io_uring_prep_write(&entry, fd, data, size, offset);
      }
      break;
    case IoOp::flush: io_uring_prep_fsync(&entry, fd, IORING_FSYNC_DATASYNC); break;
  }
  if (registered_file) io_uring_sqe_set_flags(&entry, IOSQE_FIXED_FILE);
  entry.user_data = slot;
}

void UringBlockIo::complete(std::uint32_t slot, std::int64_t answer) {
  auto& [request, transfer] = running_[slot];
  switch (transfer.advance(answer)) {
    case files::Transfer::Next::finished:
      deliver(request, transfer.result());
      free_slots_.push_back(slot);
      break;
    case files::Transfer::Next::again: issue(slot); break;
    case files::Transfer::Next::again_later: ring_->prepare_pause(slot | kEndOfPause); break;
  }
}

void UringBlockIo::deliver(const IoRequest& request, std::int64_t result) {
  queue_.finish(request.op);
  files_.finish(request.file);
  finished_.push_back({.tag = request.tag, .result = result});
  const std::scoped_lock lock(tally_mutex_);
  tally_.completed(request.op, result, clock_.now_ns());
}

void UringBlockIo::reap() {
  if (!ring_ || !ring_->belongs_to_this_thread()) return;
  ring_->reap([this](std::uint64_t tag, std::int32_t answer) {
    const auto slot = static_cast<std::uint32_t>(tag);
    if ((tag & kEndOfPause) != 0) {
      issue(slot);
    } else {
      complete(slot, answer);
    }
  });
}

std::size_t UringBlockIo::poll(std::span<IoResult> results) {
  if (next_finished_ == finished_.size()) {
    results_ready_.clear();  // before the look, so that what completes after it raises again
    reap();
    start_requests();
  }
  const std::size_t count = std::min(results.size(), finished_.size() - next_finished_);
  std::copy_n(finished_.begin() + static_cast<std::ptrdiff_t>(next_finished_), count,
              results.begin());
  next_finished_ += count;
  if (next_finished_ == finished_.size()) {
    finished_.clear();
    next_finished_ = 0;
  } else {
    results_ready_.raise();
  }
  return count;
}

IoCounters UringBlockIo::counters() const {
  const std::scoped_lock lock(tally_mutex_);
  return tally_.counters(clock_.now_ns());
}

}  // namespace strata
