#include "files/preallocate.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata::files {
namespace {

// Keeps SIGXFSZ, whose default action ends the process, from this thread: beyond RLIMIT_FSIZE the
// call then returns EFBIG and nothing else happens.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    const int failed = pthread_sigmask(SIG_BLOCK, &signal_, &old_mask_);
    STRATA_ASSERT(failed == 0, "pthread_sigmask refused to block SIGXFSZ");
  }
  ~FileSizeSignalBlocked() {
    const timespec no_wait{};
    if (!was_pending_) {
      while (sigtimedwait(&signal_, nullptr, &no_wait) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t signal_{};
  sigset_t old_mask_{};
  bool was_pending_ = false;
};

struct stat status_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    throw Error(ErrorCode::io, "cannot inspect the data file", {.errnum = errno, .path = path});
  }
  return status;
}

Bytes allocated(const struct stat& status) {
  return Bytes{static_cast<std::uint64_t>(status.st_blocks) * 512};  // stat(2): units of 512
}

Bytes free_space(int fd, const std::string& path) {
  struct statvfs space {};
  if (::fstatvfs(fd, &space) != 0) {
    throw Error(ErrorCode::io, "cannot ask for the free space of the directory",
                {.errnum = errno, .path = path});
  }
  return Bytes{static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize};
}

[[noreturn]] void throw_no_room(int fd, const std::string& path, Bytes needed, int errnum) {
  if (errnum == EFBIG) {
    throw Error(ErrorCode::no_space,
                fmt::format("a data file of {} bytes is beyond the file size limit; raise it "
                            "(ulimit -f) or use a file system with larger files",
                            needed.value),
                {.errnum = errnum, .path = path, .size = needed});
  }
  const Bytes free = free_space(fd, path);
  const Bytes missing = needed > free ? needed - free : Bytes{0};
  throw Error(ErrorCode::no_space,
              fmt::format("the disk is too full for a data file: {} bytes needed, {} free, {} "
                          "missing; free space or choose other nvme.directories",
                          needed.value, free.value, missing.value),
              {.errnum = errnum, .path = path, .size = missing});
}

// Returns 0 or errno.
int reserve(int fd, Bytes size) {
  for (;;) {
    if (::fallocate(fd, 0, 0, static_cast<off_t>(size.value)) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

int set_length(int fd, Bytes size) {
  for (;;) {
    if (::ftruncate(fd, static_cast<off_t>(size.value)) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

Allocation reserve_or_check(int fd, const std::string& path, Bytes size,
                            const struct stat& before) {
  if (size == Bytes{0}) return Allocation::reserved;
  const int errnum = reserve(fd, size);
  if (errnum == 0) return Allocation::reserved;
  const Bytes had = allocated(before);
  const Bytes needed = size > had ? size - had : Bytes{0};
  if (errnum == EOPNOTSUPP || errnum == ENOSYS) {
    if (needed > free_space(fd, path)) throw_no_room(fd, path, needed, ENOSPC);
    return Allocation::sparse;
  }
  // A failed fallocate may leave some blocks behind.
  const int restore_error = set_length(fd, Bytes{static_cast<std::uint64_t>(before.st_size)});
  if (restore_error != 0) {
    throw Error(ErrorCode::io, "cannot restore the length of the data file",
                {.errnum = restore_error, .path = path});
  }
  if (io_error_code(errnum) == ErrorCode::no_space) throw_no_room(fd, path, needed, errnum);
  throw Error(ErrorCode::io, "cannot preallocate the data file",
              {.errnum = errnum, .path = path, .size = size});
}

}  // namespace

Allocation preallocate(int fd, const std::string& path, Bytes size) {
  const FileSizeSignalBlocked no_signal;
  const struct stat before = status_of(fd, path);
  const Allocation allocation = reserve_or_check(fd, path, size, before);
  const int errnum = set_length(fd, size);
  if (errnum != 0) {
    if (errnum == EFBIG) throw_no_room(fd, path, size, errnum);
    throw Error(io_error_code(errnum), "cannot set the length of the data file",
                {.errnum = errnum, .path = path, .size = size});
  }
  return allocation;
}

}  // namespace strata::files
