#include "safetensors/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "safetensors/message_text.hpp"
#include "strata/error.hpp"

namespace strata::safetensors {
namespace {

[[noreturn]] void fail(std::string_view what, int errnum, const std::string& path) {
  throw Error(io_error_code(errnum), what, {.errnum = errnum, .path = path});
}

[[noreturn]] void fail_write(std::string_view what, int errnum, const std::string& path) {
  const bool full = io_error_code(errnum) == ErrorCode::no_space;
  fail(fmt::format("{}; {}", what,
                   full ? "free space or export to another directory" : "check the disk"),
       errnum, path);
}

FileIdentity identity_of(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size_bytes = static_cast<std::uint64_t>(status.st_size),
          .modified_s = status.st_mtim.tv_sec,
          .modified_ns = status.st_mtim.tv_nsec};
}

}  // namespace

OpenedFile open_to_read(const std::string& path) {
  // O_NONBLOCK: a FIFO must not hang the open.
  OpenedFile file{.descriptor = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)),
                  .identity = {}};
  if (!file.descriptor) fail("cannot open the file", errno, path);
  struct stat status {};
  if (::fstat(file.descriptor.get(), &status) != 0) fail("cannot inspect the file", errno, path);
  if (!S_ISREG(status.st_mode)) fail("this is not a regular file; name another", 0, path);
  file.identity = identity_of(status);
  return file;
}

void read_exactly(int fd, std::span<std::byte> to, std::uint64_t offset_bytes,
                  const std::string& path) {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got =
        ::pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read the file", errno, path);
    if (got == 0) refuse(path, fmt::format("the file ends at byte {}", offset_bytes + done));
    done += static_cast<std::size_t>(got);
  }
}

std::string read_text(const std::string& path, std::uint64_t most_bytes) {
  const OpenedFile file = open_to_read(path);
  const std::uint64_t size = file.identity.size_bytes;
  if (size > most_bytes) {
    refuse(path,
           fmt::format("the file has {} bytes, more than the {} that are read", size, most_bytes));
  }
  std::string text(size, '\0');
  read_exactly(file.descriptor.get(), std::as_writable_bytes(std::span(text)), 0, path);
  return text;
}

void write_exactly(int fd, std::span<const std::byte> from, std::uint64_t offset_bytes,
                   const std::string& path) {
  std::size_t done = 0;
  while (done < from.size()) {
    const ssize_t put = ::pwrite(fd, from.data() + done, from.size() - done,
                                 static_cast<off_t>(offset_bytes + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail_write("cannot write the file", put < 0 ? errno : ENOSPC, path);
    done += static_cast<std::size_t>(put);
  }
}

void sync_file(int fd, const std::string& path) {
  while (::fsync(fd) != 0) {
    if (errno != EINTR) fail_write("cannot bring the file to the disk", errno, path);
  }
}

}  // namespace strata::safetensors
