#include "posix/posix_block_io.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/check.hpp"
#include "posix/data_file.hpp"
#include "posix/directory.hpp"
#include "posix/transfer.hpp"
#include "strata/error.hpp"

namespace strata {

struct PosixBlockIo::OpenFile {
  posix::DataFile data;
  std::size_t in_flight = 0;
};

namespace {

std::int64_t flush(int fd) {
  for (;;) {
    if (::fdatasync(fd) == 0) return 0;
    if (errno != EINTR) return -errno;
  }
}

std::int64_t run(const posix::DataFile& file, const IoRequest& request) {
  const int fd = file.descriptor.get();
  if (request.op == IoOp::flush) return flush(fd);
  const bool reading = request.op == IoOp::read;
  return posix::finish_transfer(
      reading ? posix::Direction::read : posix::Direction::write, request.size,
      file.alignment.offset, [&](std::uint64_t done) -> std::int64_t {
        const auto offset = static_cast<off_t>(request.offset_bytes + done);
        const std::uint64_t rest = request.size.value - done;
        const ssize_t moved = reading ? ::pread(fd, request.data + done, rest, offset)
                                      : ::pwrite(fd, request.data + done, rest, offset);
        return moved >= 0 ? moved : -errno;
      });
}

// Threads of ours take no signals of the process: SIGXFSZ would end it (here EFBIG is the result),
// and a handler of the program should run on a thread of the program. Faults stay as they are.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
      sigdelset(&all, fault);
    }
    const int failed = pthread_sigmask(SIG_BLOCK, &all, &old_mask_);
    STRATA_ASSERT(failed == 0, "pthread_sigmask refused to block signals");
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t old_mask_{};
};

bool is_multiple(std::uint64_t value, Bytes of) { return value % of.value == 0; }

}  // namespace

PosixBlockIo::PosixBlockIo(Options options) : options_(std::move(options)) {
  STRATA_ASSERT(options_.threads > 0, "PosixBlockIo needs at least one thread");
  try {
    start_threads();
  } catch (const std::system_error& error) {
    stop_threads();
    throw Error(ErrorCode::io,
                fmt::format("cannot start {} I/O threads; lower nvme.io_threads or raise ulimit -u",
                            options_.threads),
                {.errnum = error.code().value()});
  }
}

PosixBlockIo::~PosixBlockIo() { stop_threads(); }

void PosixBlockIo::start_threads() {
  const SignalsBlocked inherited_by_threads;
  threads_.reserve(options_.threads);
  for (std::uint32_t i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { work(); });
  }
}

void PosixBlockIo::stop_threads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_available_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PosixBlockIo::prepare_directory(const std::string& root, const std::string& directory,
                                     bool allow_tmpfs) {
  posix::prepare_directory(root, directory, allow_tmpfs);
}

void PosixBlockIo::remove_directory(const std::string& root, const std::string& directory) {
  posix::remove_directory(root, directory);
}

FileId PosixBlockIo::open(const FileSpec& spec) {
  auto file = std::make_unique<OpenFile>();
  file->data = posix::open_data_file(
      spec, options_.direct, [this](const std::string& directory, std::string_view message) {
        tell_once(directory, message);
      });
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(file));
  return FileId{static_cast<std::uint32_t>(files_.size() - 1)};
}

void PosixBlockIo::tell_once(const std::string& directory, std::string_view message) {
  const bool is_new = told_.emplace(directory, message).second;
  if (is_new && options_.log) {
    options_.log(LogLevel::warning, fmt::format("{}: {}", directory, message));
  }
}

IoAlignment PosixBlockIo::alignment(FileId file) const {
  const std::lock_guard lock(mutex_);
  return file_of(file).data.alignment;
}

bool PosixBlockIo::direct(FileId file) const {
  const std::lock_guard lock(mutex_);
  return file_of(file).data.direct;
}

void PosixBlockIo::close(FileId file, bool remove) {
  std::unique_ptr<OpenFile> closing;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t in_flight = file_of(file).in_flight;
    STRATA_ASSERT(in_flight == 0, fmt::format("close with {} requests in flight", in_flight));
    closing = std::move(files_[file.value]);
  }
  const std::string& path = closing->data.path;
  // Deleted while the lock is held: afterwards the name may belong to another session.
  const bool failed = remove && ::unlink(path.c_str()) != 0 && errno != ENOENT;
  const int unlink_error = failed ? errno : 0;
  const int close_error = closing->data.descriptor.close();
  if (unlink_error != 0) {
    throw Error(ErrorCode::io, "cannot delete the data file; delete it by hand",
                {.errnum = unlink_error, .path = path});
  }
  if (close_error != 0) {
    throw Error(io_error_code(close_error), "closing the data file reports a lost write",
                {.errnum = close_error, .path = path});
  }
}

PosixBlockIo::OpenFile& PosixBlockIo::file_of(FileId file) const {
  STRATA_ASSERT(file.value < files_.size() && files_[file.value] != nullptr,
                fmt::format("file {} is not open", file.value));
  return *files_[file.value];
}

void PosixBlockIo::check(const IoRequest& request) const {
  const posix::DataFile& file = file_of(request.file).data;
  if (request.op == IoOp::flush) return;
  STRATA_ASSERT(
      is_multiple(request.offset_bytes, file.alignment.offset) &&
          is_multiple(request.size.value, file.alignment.offset) &&
          is_multiple(reinterpret_cast<std::uintptr_t>(request.data), file.alignment.memory),
      fmt::format("misaligned request: offset {}, {} bytes, memory {}", request.offset_bytes,
                  request.size.value, static_cast<const void*>(request.data)));
  STRATA_ASSERT(
      request.op == IoOp::read || request.offset_bytes + request.size.value <= file.size.value,
      fmt::format("write of {} bytes at {} would grow {} beyond {} bytes", request.size.value,
                  request.offset_bytes, file.path, file.size.value));
}

// Makes std::push_heap keep the most urgent request in front.
bool PosixBlockIo::later(const Queued& a, const Queued& b) {
  return std::pair(a.request.priority, a.sequence) > std::pair(b.request.priority, b.sequence);
}

void PosixBlockIo::submit(std::span<const IoRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    for (const IoRequest& request : requests) {
      check(request);
      ++file_of(request.file).in_flight;
      queue_.push_back({request, next_sequence_++});
      std::push_heap(queue_.begin(), queue_.end(), later);
    }
    tally_.submitted(requests.size(), clock_.now_ns());
  }
  if (requests.size() == 1) {
    work_available_.notify_one();
  } else {
    work_available_.notify_all();
  }
}

PosixBlockIo::Queued PosixBlockIo::take_most_urgent() {
  std::pop_heap(queue_.begin(), queue_.end(), later);
  const Queued next = queue_.back();
  queue_.pop_back();
  return next;
}

void PosixBlockIo::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_available_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const IoRequest request = take_most_urgent().request;
    OpenFile& file = file_of(request.file);
    lock.unlock();
    const std::int64_t result = run(file.data, request);
    lock.lock();
    --file.in_flight;
    finished_.push_back({.tag = request.tag, .result = result});
    tally_.completed(request.op, result, clock_.now_ns());
    lock.unlock();
    waker_.wake();
    lock.lock();
  }
}

std::size_t PosixBlockIo::poll(std::span<IoResult> results) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(results.size(), finished_.size());
  const auto end = finished_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(finished_.begin(), end, results.begin());
  finished_.erase(finished_.begin(), end);
  return count;
}

IoCounters PosixBlockIo::counters() const {
  const std::lock_guard lock(mutex_);
  return tally_.counters(clock_.now_ns());
}

}  // namespace strata
