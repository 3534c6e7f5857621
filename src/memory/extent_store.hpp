// The NVMe tier: one preallocated data file per directory, DIR/<run>/rank-<r>/states.bin, and in
// it one extent for every tile of every state kind that rests there. Extents are assigned at
// open(), dealt over the directories in turn, and never move or grow.
//
// Ownership: the store owns its files; close() deletes them, since nothing in them is
// committed. Thread: the engine thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strata/block_io.hpp"
#include "strata/types.hpp"

namespace strata {

struct Extent {
  std::uint32_t file = 0;  // index of the directory
  std::uint64_t offset_bytes = 0;
  Bytes size;  // of the payload; the extent itself is rounded up to kExtentAlign
};

// Extents start and end at multiples of this, and so does the memory of every transfer: no disk in
// use asks for more than 4096 (statx DIOALIGN). open() refuses one that does.
inline constexpr Bytes kExtentAlign{4096};

struct ExtentStoreOptions {
  std::vector<std::string> directories;
  std::string run;
  Rank rank;
  bool allow_tmpfs = false;
};

class ExtentStore {
 public:
  ExtentStore(BlockIo& io, ExtentStoreOptions options) : io_(io), options_(std::move(options)) {}
  ~ExtentStore();
  ExtentStore(const ExtentStore&) = delete;
  ExtentStore& operator=(const ExtentStore&) = delete;

  // Before open(): room for `size` bytes.
  Extent allocate(Bytes size);
  Bytes allocated() const;

  // Makes the directories, then locks and preallocates the files. Throws what BlockIo::open does;
  // whatever was opened before is closed again. Blocks.
  void open();
  // Idempotent. Pre: nothing is in flight. Blocks.
  void close();

  // A request for the whole extent; `data` has room for transfer_size(extent).
  IoRequest request(IoOp op, const Extent& extent, std::byte* data) const;
  static Bytes transfer_size(const Extent& extent) { return round_up(extent.size, kExtentAlign); }
  std::string path_of(const Extent& extent) const { return file_path(extent.file); }

 private:
  std::string directory(std::uint32_t index) const;
  std::string file_path(std::uint32_t index) const;

  BlockIo& io_;
  const ExtentStoreOptions options_;
  std::vector<Bytes> file_sizes_;
  std::uint32_t next_file_ = 0;
  std::vector<std::optional<FileId>> files_;  // by directory; empty where nothing rests
};

}  // namespace strata
