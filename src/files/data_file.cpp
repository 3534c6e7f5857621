#include "files/data_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/check.hpp"
#include "files/file_lock.hpp"
#include "files/preallocate.hpp"
#include "strata/error.hpp"

namespace strata::files {
namespace {

// Covers the logical blocks of every device on the market; used where the kernel does not say.
constexpr Bytes kFallbackAlignment{4096};

std::string directory_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

[[noreturn]] void throw_open_error(const std::string& path, int errnum) {
  const char* message = "cannot open the data file";
  if (errnum == ELOOP) message = "the data file is a symbolic link; remove it";
  if (errnum == EISDIR) message = "a directory stands where the data file should be; remove it";
  if (errnum == EMFILE || errnum == ENFILE) {
    message = "too many open files for another data file; raise the limit (ulimit -n)";
  }
  if (errnum == EROFS) message = "the file system is read-only; choose other nvme.directories";
  throw Error(io_error_code(errnum), message, {.errnum = errnum, .path = path});
}

struct OpenedFile {
  Descriptor descriptor;
  bool created = false;
};

// One try; an empty descriptor when the file vanished between the two calls.
OpenedFile create_or_open(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY;
  OpenedFile file;
  for (const int create : {O_CREAT | O_EXCL, 0}) {
    int fd = -1;
    do {
      fd = ::open(path.c_str(), kFlags | create, 0600);
    } while (fd < 0 && errno == EINTR);
    if (fd >= 0) return OpenedFile{.descriptor = Descriptor(fd), .created = create != 0};
    if (create != 0 && errno != EEXIST) throw_open_error(path, errno);
    if (create == 0 && errno != ENOENT) throw_open_error(path, errno);
  }
  return file;
}

void check_ours(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    throw Error(ErrorCode::io, "cannot inspect the data file", {.errnum = errno, .path = path});
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::io, "the data file is not a regular file; remove it", {.path = path});
  }
  if (status.st_uid != ::geteuid()) {
    throw Error(ErrorCode::io,
                fmt::format("the data file belongs to user {}, not to us; remove it or choose "
                            "another run directory",
                            status.st_uid),
                {.path = path});
  }
  if ((status.st_mode & 0077U) != 0 && ::fchmod(fd, 0600) != 0) {
    throw Error(ErrorCode::io, "cannot set mode 0600 on the data file",
                {.errnum = errno, .path = path});
  }
}

// False when the holder we waited for deleted the file as it closed it.
bool still_named(int fd, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  if (::fstat(fd, &opened) != 0) {
    throw Error(ErrorCode::io, "cannot inspect the data file", {.errnum = errno, .path = path});
  }
  if (::lstat(path.c_str(), &named) != 0) {
    if (errno == ENOENT) return false;
    throw Error(ErrorCode::io, "cannot inspect the data file", {.errnum = errno, .path = path});
  }
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

OpenedFile open_and_lock(const std::string& path) {
  constexpr int kTries = 16;
  for (int i = 0; i < kTries; ++i) {
    OpenedFile file = create_or_open(path);
    if (!file.descriptor) continue;
    check_ours(file.descriptor.get(), path);
    lock_file(file.descriptor.get(), path);
    if (still_named(file.descriptor.get(), path)) return file;
  }
  throw Error(ErrorCode::in_use,
              "the data file keeps being deleted by another process; end it or choose another run "
              "directory",
              {.path = path});
}

// Deletes a file that this open() created, unless the open succeeded. The lock is still held, so
// that the name cannot be somebody else's file.
class RemoveOnFailure {
 public:
  RemoveOnFailure(const std::string& path, bool armed) : path_(path), armed_(armed) {}
  ~RemoveOnFailure() {
    if (armed_) ::unlink(path_.c_str());
  }
  RemoveOnFailure(const RemoveOnFailure&) = delete;
  RemoveOnFailure& operator=(const RemoveOnFailure&) = delete;
  void disarm() { armed_ = false; }

 private:
  const std::string& path_;
  bool armed_;
};

// Makes the new name durable: fdatasync of a file promises nothing about its directory entry.
void sync_directory(const std::string& directory) {
  const Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw Error(ErrorCode::io, "cannot make the new data file's name durable",
                {.errnum = errno, .path = directory});
  }
}

bool rests_in_memory(int fd) {
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) return false;
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
}

// nullopt: the file system says that it has no direct I/O for this file.
std::optional<IoAlignment> told_alignment([[maybe_unused]] int fd) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    if (status.stx_dio_offset_align == 0) return std::nullopt;
    return IoAlignment{.memory = Bytes{status.stx_dio_mem_align},
                       .offset = Bytes{status.stx_dio_offset_align}};
  }
#endif
  return IoAlignment{.memory = kFallbackAlignment, .offset = kFallbackAlignment};
}

bool set_direct(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

// Some file systems accept O_DIRECT and refuse the first transfer.
bool direct_read_works(int fd, const IoAlignment& alignment) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const Bytes size = alignment.offset;
  const Bytes memory = std::max(alignment.memory, Bytes{sizeof(void*)});
  const std::unique_ptr<void, Free> buffer(
      std::aligned_alloc(memory.value, round_up(size, memory).value));
  STRATA_ASSERT(buffer != nullptr, "no memory for one block");
  ssize_t got = 0;
  do {
    got = ::pread(fd, buffer.get(), size.value, 0);
  } while (got < 0 && errno == EINTR);
  return got >= 0 || errno != EINVAL;
}

// Turns O_DIRECT on and returns what it asks for, or nothing when it is not to be had.
std::optional<IoAlignment> enable_direct(int fd) {
  if (rests_in_memory(fd)) return std::nullopt;
  const std::optional<IoAlignment> alignment = told_alignment(fd);
  if (!alignment || !set_direct(fd, true)) return std::nullopt;
  return alignment;
}

void preallocate_and_tell(const DataFile& file, const Notice& notice) {
  const Allocation allocation = preallocate(file.descriptor.get(), file.path, file.size);
  if (allocation == Allocation::sparse) {
    notice(directory_of(file.path),
           "the file system cannot preallocate; a disk that fills up will show during a step");
  }
}

}  // namespace

DataFile open_data_file(const FileSpec& spec, bool want_direct, const Notice& notice) {
  OpenedFile opened = open_and_lock(spec.path);
  RemoveOnFailure guard(spec.path, opened.created);
  DataFile file{.descriptor = std::move(opened.descriptor),
                .path = spec.path,
                .size = spec.size,
                .alignment = {},
                .direct = false};
  const int fd = file.descriptor.get();
  const auto alignment = want_direct ? enable_direct(fd) : std::nullopt;
  if (alignment) {
    file.direct = true;
    file.alignment = *alignment;
    file.size = round_up(spec.size, alignment->offset);
  }
  preallocate_and_tell(file, notice);
  if (file.direct && !direct_read_works(fd, file.alignment)) {
    if (!set_direct(fd, false)) {
      throw Error(ErrorCode::io, "cannot turn O_DIRECT off again",
                  {.errnum = errno, .path = spec.path});
    }
    file.direct = false;
    file.alignment = {};
  }
  if (want_direct && !file.direct) {
    notice(directory_of(spec.path),
           "no direct I/O here (O_DIRECT refused); using the page cache, which costs host memory "
           "and CPU");
  }
  if (opened.created) sync_directory(directory_of(spec.path));
  guard.disarm();
  return file;
}

}  // namespace strata::files
