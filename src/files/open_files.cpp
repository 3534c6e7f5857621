#include "files/open_files.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata::files {
namespace {

bool is_multiple(std::uint64_t value, Bytes of) { return value % of.value == 0; }

}  // namespace

DataFile OpenFiles::open(const FileSpec& spec) {
  return open_data_file(spec, direct_,
                        [this](const std::string& directory, std::string_view message) {
                          tell_once(directory, message);
                        });
}

void OpenFiles::tell_once(const std::string& directory, std::string_view message) {
  const bool is_new = told_.emplace(directory, message).second;
  if (is_new && log_) log_(LogLevel::warning, fmt::format("{}: {}", directory, message));
}

FileId OpenFiles::add(DataFile file) {
  entries_.push_back(std::make_unique<Entry>(Entry{.data = std::move(file)}));
  return FileId{static_cast<std::uint32_t>(entries_.size() - 1)};
}

OpenFiles::Entry& OpenFiles::entry(FileId file) const {
  STRATA_ASSERT(file.value < entries_.size() && entries_[file.value] != nullptr,
                fmt::format("file {} is not open", file.value));
  return *entries_[file.value];
}

void OpenFiles::start(const IoRequest& request) {
  Entry& file = entry(request.file);
  const IoAlignment& alignment = file.data.alignment;
  if (request.op != IoOp::flush) {
    STRATA_ASSERT(
        is_multiple(request.offset_bytes, alignment.offset) &&
            is_multiple(request.size.value, alignment.offset) &&
            is_multiple(reinterpret_cast<std::uintptr_t>(request.data), alignment.memory),
        fmt::format("misaligned request: offset {}, {} bytes, memory {}", request.offset_bytes,
                    request.size.value, static_cast<const void*>(request.data)));
    STRATA_ASSERT(
        request.op == IoOp::read ||
            request.offset_bytes + request.size.value <= file.data.size.value,
        fmt::format("write of {} bytes at {} would grow {} beyond {} bytes", request.size.value,
                    request.offset_bytes, file.data.path, file.data.size.value));
  }
  ++file.in_flight;
}

void OpenFiles::close(FileId file, bool remove) {
  const std::size_t in_flight = entry(file).in_flight;
  STRATA_ASSERT(in_flight == 0, fmt::format("close with {} requests in flight", in_flight));
  const std::unique_ptr<Entry> closing = std::move(entries_[file.value]);
  const std::string& path = closing->data.path;
  Descriptor& descriptor = closing->data.descriptor;
  // Deleted while the lock is held: afterwards the name may belong to another session.
  // Its blocks are freed at once, although something else may keep the file open a little longer
  // (an io_uring ring lets go of its files in the background).
  [[maybe_unused]] const int emptied = remove ? ::ftruncate(descriptor.get(), 0) : 0;
  const bool failed = remove && ::unlink(path.c_str()) != 0 && errno != ENOENT;
  const int unlink_error = failed ? errno : 0;
  // Explicit, for the same reason.
  ::flock(descriptor.get(), LOCK_UN);
  const int close_error = descriptor.close();
  if (unlink_error != 0) {
    throw Error(ErrorCode::io, "cannot delete the data file; delete it by hand",
                {.errnum = unlink_error, .path = path});
  }
  if (close_error != 0) {
    throw Error(io_error_code(close_error), "closing the data file reports a lost write",
                {.errnum = close_error, .path = path});
  }
}

}  // namespace strata::files
