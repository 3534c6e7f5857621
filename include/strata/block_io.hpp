// Port: files on fast local disks. Requests are submitted in batches and complete in any order,
// each with a plain number: bytes moved, or -errno. Adapters finish short transfers and retry
// EINTR and EAGAIN themselves; a result smaller than the request means end of file.
//
// Ownership: a request's memory belongs to the I/O from submit() until its result was polled.
// Thread: one at a time (the engine thread while a session runs), except descriptor() and
// counters(), which any may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "strata/types.hpp"

namespace strata {

// A data file to create. The file is locked (flock on the descriptor that does the I/O) for as
// long as it is open, created with mode 0600, never through a symbolic link, and preallocated, so
// that a full disk shows at open() and not in the middle of a step.
struct FileSpec {
  std::string path;
  Bytes size;  // preallocated; the file never grows
};

// Multiples that O_DIRECT asks for; 1 byte each when the file goes through the page cache.
struct IoAlignment {
  Bytes memory{1};
  Bytes offset{1};  // of file offset and of length
};

enum class IoOp : std::uint8_t { read, write, flush };

struct IoRequest {
  IoOp op = IoOp::read;
  FileId file;
  std::uint64_t offset_bytes = 0;
  std::byte* data = nullptr;
  Bytes size;                  // 0 for flush
  std::uint64_t priority = 0;  // smaller is more urgent
  std::uint64_t tag = 0;       // returned with the result
};

struct IoResult {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  // bytes moved, or -errno
};

// Bytes and requests that completed successfully since the adapter was made.
struct IoCounters {
  Bytes read;
  Bytes written;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  double busy_seconds = 0;  // time during which at least one request was in flight
};

class BlockIo {
 public:
  virtual ~BlockIo() = default;

  virtual std::string_view name() const = 0;

  // Makes `directory` (and missing parents below an existing `root`) with mode 0700 and checks
  // that states may rest there. Throws Error: io when `root` is missing or not a directory, not
  // writable, on a read-only file system, or a symbolic link stands below it; not_supported on
  // tmpfs unless `allow_tmpfs`. Blocks.
  virtual void prepare_directory(const std::string& root, const std::string& directory,
                                 bool allow_tmpfs) = 0;

  // Creates, locks and preallocates a file. Throws Error: in_use when another process holds it
  // (naming its pid where known), no_space with the bytes missing, io otherwise. Blocks.
  virtual FileId open(const FileSpec& spec) = 0;
  virtual IoAlignment alignment(FileId file) const = 0;
  virtual bool direct(FileId file) const = 0;  // false: through the page cache

  // Closes the file, and deletes it when `remove`. Pre: no request on it is in flight. Blocks.
  virtual void close(FileId file, bool remove) = 0;

  // Removes the directory if it is empty, and then empty parents below `root`. Never throws.
  virtual void remove_directory(const std::string& root, const std::string& directory) = 0;

  // Does not block. Pre: data, offset and size are aligned as alignment() says.
  virtual void submit(std::span<const IoRequest> requests) = 0;

  // Moves finished results into `results` and returns how many. Does not block.
  virtual std::size_t poll(std::span<IoResult> results) = 0;

  // What poll(2) reports readable while results may be available; a poll() that took the last one
  // clears it. Lives as long as the adapter. Thread: any.
  virtual int descriptor() const = 0;

  // Names the memory that most requests will use, so that an adapter can prepare it once instead of
  // for each request; replaces what was named before, an empty span names none. The memory outlives
  // the adapter or the next call. Other memory works as well. Pre: nothing is in flight. Blocks.
  virtual void use_memory(std::span<std::byte> memory) { static_cast<void>(memory); }
  // Whether requests on that memory use what was prepared; known once one was submitted.
  virtual bool uses_registered_memory() const { return false; }

  virtual IoCounters counters() const = 0;
};

}  // namespace strata
