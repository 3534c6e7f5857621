#include "output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "strata/error.hpp"

namespace strata::tool {

OutputFile::OutputFile(const std::string& path) : path_(path) {
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
  descriptor_ = Descriptor(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666));
  created_ = static_cast<bool>(descriptor_);
  if (!created_ && errno == EEXIST) descriptor_ = Descriptor(::open(path.c_str(), kFlags));
  if (!descriptor_) fail();
}

OutputFile::~OutputFile() {
  if (created_ && !written_) ::unlink(path_.c_str());
}

void OutputFile::write(std::string_view content) {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) fail();
  if (S_ISREG(status.st_mode) && ::ftruncate(descriptor_.get(), 0) != 0) fail();
  while (!content.empty()) {
    const ssize_t count = ::write(descriptor_.get(), content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    content.remove_prefix(static_cast<std::size_t>(count));
  }
  errno = descriptor_.close();
  if (errno != 0) fail();
  written_ = true;
}

void OutputFile::fail() const {
  throw Error(ErrorCode::io, "cannot write", {.errnum = errno, .path = path_});
}

void print(std::FILE* out, std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0) {
    throw Error(ErrorCode::io, "cannot write the output", {.errnum = errno});
  }
}

}  // namespace strata::tool
