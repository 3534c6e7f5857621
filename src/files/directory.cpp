#include "files/directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"
#include "strata/error.hpp"

namespace strata::files {
namespace {

constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// The names from root down to directory; nullopt when directory is not root or below it.
std::optional<std::vector<std::string>> components_below(const std::string& root,
                                                         const std::string& directory) {
  const std::filesystem::path below =
      std::filesystem::path(directory).lexically_normal().lexically_relative(
          std::filesystem::path(root).lexically_normal());
  if (below.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& name : below) {
    if (name == "..") return std::nullopt;
    if (!name.empty() && name != ".") names.push_back(name.string());
  }
  return names;
}

[[noreturn]] void fail(ErrorCode code, std::string_view what, const std::string& path,
                       std::string_view advice, int errnum) {
  throw Error(code, fmt::format("nvme directory {} {}; {}", path, what, advice),
              {.errnum = errnum, .path = path});
}

[[noreturn]] void fail(const std::string& path, int errnum) {
  constexpr std::string_view kAdvice = "choose other nvme.directories";
  switch (errnum) {
    case ENOENT:
      fail(ErrorCode::io, "does not exist", path, "create it or set nvme.directories", errnum);
    case ENOTDIR: fail(ErrorCode::io, "is not a directory", path, kAdvice, errnum);
    case EROFS: fail(ErrorCode::io, "is on a read-only file system", path, kAdvice, errnum);
    case EACCES:
    case EPERM:
      fail(ErrorCode::io, "is not writable for this user", path,
           "change its permissions or set nvme.directories", errnum);
    case EMFILE:
    case ENFILE:
      fail(ErrorCode::io, "cannot be opened", path, "raise the limit of open files (ulimit -n)",
           errnum);
    default: fail(io_error_code(errnum), "cannot be used", path, kAdvice, errnum);
  }
}

void refuse_memory_file_system(int fd, const std::string& path) {
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) fail(path, errno);
  if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
    fail(ErrorCode::not_supported, "rests in RAM", path,
         "choose a directory on a disk or set nvme.allow_tmpfs", 0);
  }
}

Descriptor open_directory(int parent, const std::string& name, int flags) {
  for (;;) {
    Descriptor fd(::openat(parent, name.c_str(), flags));
    if (fd || errno != EINTR) return fd;
  }
}

bool is_symbolic_link(int parent, const std::string& name) {
  struct stat status {};
  return ::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISLNK(status.st_mode);
}

// Opens `name` below `parent`, making it first when it is missing.
Descriptor enter(const Descriptor& parent, const std::string& name, const std::string& path) {
  Descriptor next = open_directory(parent.get(), name, kDirectoryFlags | O_NOFOLLOW);
  if (!next && errno == ENOENT) {
    if (::mkdirat(parent.get(), name.c_str(), 0700) != 0 && errno != EEXIST) fail(path, errno);
    // The new name must outlive a power loss as the files below it do.
    if (::fsync(parent.get()) != 0 && errno != EINVAL) fail(path, errno);
    next = open_directory(parent.get(), name, kDirectoryFlags | O_NOFOLLOW);
  }
  if (next) return next;
  const int errnum = errno;
  if (is_symbolic_link(parent.get(), name)) {
    fail(ErrorCode::io, "is a symbolic link", path,
         "name the link's target in nvme.directories or remove the link", 0);
  }
  fail(path, errnum);
}

}  // namespace

void prepare_directory(const std::string& root, const std::string& directory, bool allow_tmpfs) {
  const auto names = components_below(root, directory);
  if (!names) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is not below the nvme directory {}", directory, root));
  }
  Descriptor current = open_directory(AT_FDCWD, root, kDirectoryFlags);
  if (!current) fail(root, errno);
  std::filesystem::path path = root;
  if (!allow_tmpfs) refuse_memory_file_system(current.get(), path.string());
  for (const std::string& name : *names) {
    path /= name;
    current = enter(current, name, path.string());
    if (!allow_tmpfs) refuse_memory_file_system(current.get(), path.string());
  }
  if (::faccessat(current.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) fail(path.string(), errno);
}

namespace {

// Where no descriptor is left to walk with.
void remove_by_path(const std::string& root, const std::string& directory) {
  for (std::filesystem::path path = directory; path != root; path = path.parent_path()) {
    if (::rmdir(path.c_str()) != 0 && errno != ENOENT) return;
  }
}

}  // namespace

void remove_directory(const std::string& root, const std::string& directory) noexcept {
  try {
    const auto names = components_below(root, directory);
    if (!names) return;
    std::vector<Descriptor> parents;
    parents.push_back(open_directory(AT_FDCWD, root, kDirectoryFlags));
    while (parents.back() && parents.size() < names->size()) {
      const std::string& name = (*names)[parents.size() - 1];
      parents.push_back(open_directory(parents.back().get(), name, kDirectoryFlags | O_NOFOLLOW));
    }
    if (!parents.back()) {
      parents.pop_back();
      if (errno == EMFILE || errno == ENFILE) {
        remove_by_path(root, directory);
        return;
      }
    }
    if (names->empty()) return;
    for (std::size_t i = parents.size(); i-- > 0;) {
      const int failed = ::unlinkat(parents[i].get(), (*names)[i].c_str(), AT_REMOVEDIR);
      if (failed != 0 && errno != ENOENT) return;
    }
  } catch (const std::exception&) {
    // Out of memory while tidying up: the directory stays, which is allowed.
  }
}

}  // namespace strata::files
