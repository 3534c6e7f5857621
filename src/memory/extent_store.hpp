// The NVMe tier: one preallocated data file per directory, DIR/<run>/rank-<r>/states.bin, cut into
// slots. An extent is a tile of one state kind; it rests in one slot, its current version. With
// spare slots a write goes beside the current version and takes its place only when it is
// committed; without, it overwrites. Everything is assigned before open(); nothing grows after.
//
// What a slot must hold is known here: a version number and a checksum of the bytes, seeded with
// the identity of extent and version. The store does no I/O of its own; TileIo does (engine).
//
// Ownership: the store owns its files; close() deletes them, since nothing in them is committed
// beyond the session. Thread: the engine thread; seeds, sums and sizes of an extent may be read by
// a worker while no write of that extent is committed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strata/block_io.hpp"
#include "strata/types.hpp"

namespace strata {

using ExtentId = Id<struct ExtentTag>;

// Slots start and end at multiples of this, and so does the memory of every transfer: no disk in
// use asks for more than 4096 (statx DIOALIGN). open() refuses one that does.
inline constexpr Bytes kExtentAlign{4096};

struct ExtentStoreOptions {
  std::vector<std::string> directories;
  std::vector<double> weights;  // shares of the directories; empty: equal
  std::string run;
  Rank rank;
  bool allow_tmpfs = false;
};

class ExtentStore {
 public:
  using SlotIndex = std::uint32_t;

  // A write between begin_write() and commit() or abandon().
  struct Write {
    ExtentId extent;
    SlotIndex slot = 0;
    std::uint64_t version = 0;
  };

  // A version that stays readable until unpin(), whatever is written meanwhile.
  struct Pin {
    ExtentId extent;
    SlotIndex slot = 0;
    std::uint64_t version = 0;
    std::uint64_t checksum = 0;
  };

  ExtentStore(BlockIo& io, ExtentStoreOptions options);
  ~ExtentStore();
  ExtentStore(const ExtentStore&) = delete;
  ExtentStore& operator=(const ExtentStore&) = delete;

  // Before open(): an extent of `size` bytes. Extents of one `stream` (a state kind) are dealt over
  // the directories by weight, so that reading a stream uses all disks.
  ExtentId add(Bytes size, std::uint32_t stream);
  // Before open(), after every add(): for each size of slot `count` spares, at most one for each
  // extent of that size.
  void add_spares(std::uint32_t count);
  // Bytes of all slots.
  Bytes allocated() const;

  // Every extent counts as written. For simulations, in which nothing is.
  void assume_written();

  // Makes the directories, then locks and preallocates the files. Throws what BlockIo::open does;
  // whatever was opened before is closed again. Blocks.
  void open();
  // Closes and deletes every file, then throws the first Error that came. Idempotent; the
  // destructor calls it and drops the Error. Pre: nothing is in flight. Blocks.
  void close();

  // Whether every file is open for direct I/O.
  bool direct() const;

  Bytes size(ExtentId extent) const { return extents_[extent.value].size; }
  // What a transfer moves: the size rounded up to kExtentAlign.
  Bytes transfer_size(ExtentId extent) const {
    return round_up(extents_[extent.value].size, kExtentAlign);
  }
  bool was_written(ExtentId extent) const { return extents_[extent.value].version > 0; }

  // A request for the current version; `data` has room for transfer_size().
  IoRequest read_request(ExtentId extent, std::byte* data) const;
  IoRequest read_request(const Pin& pin, std::byte* data) const;
  IoRequest write_request(const Write& write, std::byte* data) const;

  // Chooses where the next version goes: beside the current one while a spare is free, otherwise in
  // its place. Empty: the current version is pinned and no spare is free. Pre (asserted): no other
  // write of the extent has begun.
  std::optional<Write> begin_write(ExtentId extent);
  // The bytes have been written: the version is the current one from now on.
  void commit(const Write& write, std::uint64_t checksum);
  // The write failed. The old version remains current; if it was being overwritten, its checksum
  // tells whether it is still whole.
  void abandon(const Write& write);

  Pin pin(ExtentId extent);
  void unpin(const Pin& pin);

  // Seeds of checksums: of the current version, and of the one that the next write makes.
  std::uint64_t seed(ExtentId extent) const { return seed_of(extent, version_of(extent)); }
  std::uint64_t next_seed(ExtentId extent) const { return seed_of(extent, version_of(extent) + 1); }
  std::uint64_t checksum(ExtentId extent) const { return extents_[extent.value].checksum; }

  SlotIndex slot_of(ExtentId extent) const { return extents_[extent.value].slot; }
  std::string path_of(SlotIndex slot) const { return file_path(slots_[slot].file); }
  std::uint64_t offset_of(SlotIndex slot) const { return slots_[slot].offset_bytes; }

 private:
  struct Slot {
    std::uint32_t file = 0;
    std::uint64_t offset_bytes = 0;
    std::uint32_t holders = 0;  // the extent whose current version it is, a write, pins
  };
  struct ExtentState {
    Bytes size;
    SlotIndex slot = 0;
    std::uint64_t version = 0;  // 0: never written
    std::uint64_t checksum = 0;
    std::optional<SlotIndex> being_written;  // where the write that has begun goes
  };
  struct SizeClass {
    std::uint32_t extents = 0;
    std::vector<SlotIndex> spares;  // free ones
  };

  void close_file(std::uint32_t index);
  std::string directory(std::uint32_t index) const;
  std::string file_path(std::uint32_t index) const { return directory(index) + "/states.bin"; }
  double weight(std::size_t file) const;
  std::uint32_t next_file(std::uint32_t stream, Bytes size);
  SlotIndex add_slot(Bytes size, std::uint32_t stream);
  void let_go(SlotIndex slot, Bytes size);
  IoRequest request(IoOp op, SlotIndex slot, Bytes size, std::byte* data) const;
  std::uint64_t version_of(ExtentId extent) const { return extents_[extent.value].version; }
  std::uint64_t seed_of(ExtentId extent, std::uint64_t version) const;

  BlockIo& io_;
  const ExtentStoreOptions options_;
  std::vector<Bytes> file_sizes_;           // by directory
  std::vector<std::vector<double>> dealt_;  // by stream and directory: bytes / weight
  std::vector<Slot> slots_;
  std::vector<ExtentState> extents_;
  std::map<Bytes, SizeClass> classes_;        // by transfer size
  std::vector<std::optional<FileId>> files_;  // by directory; empty where nothing rests
  bool is_open_ = false;
};

}  // namespace strata
