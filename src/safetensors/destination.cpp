#include "safetensors/destination.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "files/preallocate.hpp"
#include "safetensors/file.hpp"
#include "safetensors/message_text.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"

namespace strata::safetensors {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial";

[[noreturn]] void fail_destination(const std::string& directory, std::string_view what,
                                   int errnum = 0) {
  throw Error(ErrorCode::config, fmt::format("the directory of the export {}", what),
              {.errnum = errnum, .path = directory});
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

// The rest of an export, or what a reader would take for a model.
void refuse_model(const std::string& directory) {
  std::error_code error;
  fs::directory_iterator at(directory, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(kPartial)) {
      fail_destination(directory,
                       fmt::format("holds {}, left of another export; remove it once that "
                                   "has ended",
                                   in_quotes(name)));
    }
    if (name == "config.json" ||
        (name.starts_with("model") && name.find(".safetensors") != name.npos)) {
      fail_destination(directory, fmt::format("holds a model already ({}); name another "
                                              "directory or remove that",
                                              in_quotes(name)));
    }
  }
  if (error) fail_destination(directory, "cannot be read", error.value());
}

std::string parent_of(const std::string& directory) {
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a slash at the end
  const fs::path parent = path.parent_path();
  return parent.empty() ? "." : parent.string();
}

class RemoveUnlessDone {
 public:
  explicit RemoveUnlessDone(const std::string& path) : path_(path) {}
  ~RemoveUnlessDone() {
    if (!done_) ::unlink(path_.c_str());
  }
  RemoveUnlessDone(const RemoveUnlessDone&) = delete;
  RemoveUnlessDone& operator=(const RemoveUnlessDone&) = delete;
  void done() { done_ = true; }

 private:
  const std::string& path_;
  bool done_ = false;
};

void reserve(int fd, const std::string& path, std::uint64_t size_bytes) {
  try {
    files::preallocate(fd, path, Bytes{size_bytes});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_space) throw;
    const bool limit = error.context().errnum == EFBIG;
    throw Error(
        ErrorCode::no_space,
        fmt::format("there is no room for a file of {}; {}", format_bytes(Bytes{size_bytes}),
                    limit ? "raise the file size limit (ulimit -f) or write smaller files"
                          : "free space or export to another directory"),
        {.errnum = error.context().errnum, .path = path});
  }
}

}  // namespace

std::string partial(const std::string& path) { return path + std::string(kPartial); }

void check_destination(const std::string& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    if (errno != ENOENT) fail_destination(directory, "cannot be inspected", errno);
    const std::string parent = parent_of(directory);
    if (!exists(parent)) {
      fail_destination(directory,
                       fmt::format("cannot be made: {} does not exist; create it", parent));
    }
    if (::faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
      fail_destination(directory, fmt::format("cannot be made: {} is not writable", parent), errno);
    }
    return;
  }
  if (!S_ISDIR(status.st_mode)) fail_destination(directory, "is not a directory; name another");
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    fail_destination(directory, "is not writable; name another", errno);
  }
  refuse_model(directory);
}

bool make_destination(const std::string& directory) {
  check_destination(directory);
  if (::mkdir(directory.c_str(), 0777) == 0) return true;
  if (errno != EEXIST) fail_destination(directory, "cannot be made", errno);
  return false;
}

void make_file(const std::string& path, std::span<const char> head, std::uint64_t size_bytes) {
  const Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) {
    throw Error(errno == EEXIST ? ErrorCode::config : ErrorCode::io,
                errno == EEXIST ? "the file is there already; another export writes it or has "
                                  "left it, remove it once that has ended"
                                : "cannot create the file",
                {.errnum = errno, .path = path});
  }
  RemoveUnlessDone guard(path);
  reserve(fd.get(), path, size_bytes);
  write_exactly(fd.get(), std::as_bytes(head), 0, path);
  sync_file(fd.get(), path);
  guard.done();
}

void publish(const std::string& directory, std::span<const std::string> names) {
  const auto path_of = [&](const std::string& name) { return directory + "/" + name; };
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string path = path_of(names[i]);
    if (std::rename(partial(path).c_str(), path.c_str()) == 0) continue;
    const int errnum = errno;
    for (std::size_t j = 0; j < i; ++j) ::unlink(path_of(names[j]).c_str());
    throw Error(ErrorCode::io, "cannot rename the exported file; check the directory",
                {.errnum = errnum, .path = path});
  }
  const Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system whose directories need no fsync.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw Error(ErrorCode::io, "cannot make the names of the exported files durable",
                {.errnum = errno, .path = directory});
  }
}

}  // namespace strata::safetensors
