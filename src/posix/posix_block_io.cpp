#include "posix/posix_block_io.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "base/check.hpp"
#include "base/signals_blocked.hpp"
#include "files/directory.hpp"
#include "files/transfer.hpp"
#include "strata/error.hpp"

namespace strata {

namespace {

// One system call; bytes moved or -errno.
std::int64_t call(int fd, const IoRequest& request, std::uint64_t done) {
  const auto offset = static_cast<off_t>(request.offset_bytes + done);
  std::byte* const data = request.data + done;
  const std::uint64_t rest = request.size.value - done;
  ssize_t result = 0;
  switch (request.op) {
    case IoOp::read: result = ::pread(fd, data, rest, offset); break;
    case IoOp::write: result = ::pwrite(fd, data, rest, offset); break;
    case IoOp::flush: result = ::fdatasync(fd); break;
  }
  return result >= 0 ? result : -errno;
}

std::int64_t run(const files::DataFile& file, const IoRequest& request) {
  constexpr std::chrono::milliseconds kIdlePause{1};
  files::Transfer transfer(request.op, request.size, file.alignment.offset);
  for (;;) {
    switch (transfer.advance(call(file.descriptor.get(), request, transfer.done()))) {
      case files::Transfer::Next::finished: return transfer.result();
      case files::Transfer::Next::again: break;
      case files::Transfer::Next::again_later: std::this_thread::sleep_for(kIdlePause); break;
    }
  }
}

}  // namespace

PosixBlockIo::PosixBlockIo(Options options)
    : options_(std::move(options)), files_(options_.direct, options_.log), queue_(options_.depth) {
  try {
    start_threads();
  } catch (const std::system_error& error) {
    stop_threads();
    throw Error(
        ErrorCode::io,
        fmt::format("cannot start {} I/O threads; lower nvme.queue_depth or raise ulimit -u",
                    options_.depth.requests),
        {.errnum = error.code().value()});
  }
}

PosixBlockIo::~PosixBlockIo() { stop_threads(); }

void PosixBlockIo::start_threads() {
  const SignalsBlocked inherited_by_threads;
  threads_.reserve(options_.depth.requests);
  for (std::uint32_t i = 0; i < options_.depth.requests; ++i) {
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
  files::prepare_directory(root, directory, allow_tmpfs);
}

void PosixBlockIo::remove_directory(const std::string& root, const std::string& directory) {
  files::remove_directory(root, directory);
}

FileId PosixBlockIo::open(const FileSpec& spec) {
  files::DataFile file = files_.open(spec);
  const std::lock_guard lock(mutex_);
  return files_.add(std::move(file));
}

IoAlignment PosixBlockIo::alignment(FileId file) const {
  const std::lock_guard lock(mutex_);
  return files_[file].alignment;
}

bool PosixBlockIo::direct(FileId file) const {
  const std::lock_guard lock(mutex_);
  return files_[file].direct;
}

void PosixBlockIo::close(FileId file, bool remove) {
  const std::lock_guard lock(mutex_);
  files_.close(file, remove);
}

void PosixBlockIo::submit(std::span<const IoRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    for (const IoRequest& request : requests) {
      files_.start(request);
      queue_.push(request);
    }
    tally_.submitted(requests.size(), clock_.now_ns());
  }
  if (requests.size() == 1) {
    work_available_.notify_one();
  } else {
    work_available_.notify_all();
  }
}

void PosixBlockIo::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_available_.wait(lock, [this] { return stopping_ || queue_.can_start(); });
    if (stopping_) return;
    const IoRequest request = queue_.start_next().value();
    const files::DataFile& file = files_[request.file];
    lock.unlock();
    const std::int64_t result = run(file, request);
    lock.lock();
    queue_.finish(request.op);
    files_.finish(request.file);
    if (finished_.empty()) results_ready_.raise();
    finished_.push_back({.tag = request.tag, .result = result});
    tally_.completed(request.op, result, clock_.now_ns());
  }
}

std::size_t PosixBlockIo::poll(std::span<IoResult> results) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(results.size(), finished_.size());
  const auto end = finished_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(finished_.begin(), end, results.begin());
  finished_.erase(finished_.begin(), end);
  if (count > 0 && finished_.empty()) results_ready_.clear();
  return count;
}

IoCounters PosixBlockIo::counters() const {
  const std::lock_guard lock(mutex_);
  return tally_.counters(clock_.now_ns());
}

}  // namespace strata
