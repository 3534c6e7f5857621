#include "memory/extent_store.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata {

ExtentStore::~ExtentStore() { close(); }

std::string ExtentStore::directory(std::uint32_t index) const {
  return fmt::format("{}/{}/rank-{}", options_.directories[index], options_.run,
                     options_.rank.value);
}

std::string ExtentStore::file_path(std::uint32_t index) const {
  return directory(index) + "/states.bin";
}

Extent ExtentStore::allocate(Bytes size) {
  STRATA_ASSERT(files_.empty(), "extents are fixed once the store is open");
  STRATA_ASSERT(!options_.directories.empty(), "an extent without a directory");
  file_sizes_.resize(options_.directories.size());
  const std::uint32_t file = next_file_;
  next_file_ = (next_file_ + 1) % static_cast<std::uint32_t>(file_sizes_.size());
  const Extent extent{file, file_sizes_[file].value, size};
  file_sizes_[file] += round_up(size, kExtentAlign);
  return extent;
}

Bytes ExtentStore::allocated() const {
  Bytes total;
  for (const Bytes size : file_sizes_) total += size;
  return total;
}

void ExtentStore::open() {
  files_.resize(file_sizes_.size());
  try {
    for (std::uint32_t i = 0; i < file_sizes_.size(); ++i) {
      if (file_sizes_[i] == Bytes{}) continue;
      io_.prepare_directory(options_.directories[i], directory(i), options_.allow_tmpfs);
      files_[i] = io_.open({file_path(i), file_sizes_[i]});
      const IoAlignment alignment = io_.alignment(*files_[i]);
      if (std::max(alignment.offset, alignment.memory) > kExtentAlign) {
        throw Error(
            ErrorCode::not_supported,
            fmt::format("the disk asks for an alignment of {} bytes, at most {} are "
                        "supported: choose another directory",
                        std::max(alignment.offset, alignment.memory).value, kExtentAlign.value),
            {.path = directory(i)});
      }
    }
  } catch (...) {
    close();
    throw;
  }
}

void ExtentStore::close() {
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    if (file_sizes_[i] == Bytes{}) continue;
    if (files_[i]) io_.close(*files_[i], true);
    // Also where open() failed after it had made the directory.
    io_.remove_directory(options_.directories[i], directory(i));
  }
  files_.clear();
}

IoRequest ExtentStore::request(IoOp op, const Extent& extent, std::byte* data) const {
  return {.op = op,
          .file = files_[extent.file].value(),
          .offset_bytes = extent.offset_bytes,
          .data = data,
          .size = transfer_size(extent)};
}

}  // namespace strata
