// Tiles between staging memory and the NVMe tier, so that nothing is lost silently: every result is
// looked at, a failed transfer is tried again for a while, every tile is checked against the
// checksum of what was written. Checksums are computed on workers, in the job that works on the
// tile where there is one.
//
// Errors are typed and name path, offset, unit and kind: io and no_space when a transfer kept
// failing, corrupt when a tile is not what was written, twice. A write that failed has not replaced
// the version before it.
//
// Ownership: borrows the store; memory belongs to the disk until a task has ended.
// Thread: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/executor.hpp"
#include "layout/state_table.hpp"
#include "memory/checksum.hpp"
#include "memory/extent_store.hpp"
#include "strata/error.hpp"
#include "strata/log.hpp"

namespace strata {

// Which transfers overtake which: what a gather waits for is read before what an update will need,
// and that before anything is written back.
enum class IoPriority : std::uint64_t { gather = 0, stage = 1, write_back = 2 };

// A tile in staging memory, with room for ExtentStore::transfer_size().
struct TileBuffer {
  ExtentId extent;
  std::byte* data = nullptr;
  std::uint64_t checksum = 0;  // of what will be written; set by TileIo::process()
};

// What an error says that a tile is.
struct TileName {
  std::string kind;
  std::string unit;
  Rank rank;
};

// A pass over a tile of `count` elements, `part` at a time.
struct Parts {
  std::uint64_t count = 0;
  std::uint64_t part = 0;
};

struct TileIoOptions {
  bool verify = true;
  std::int64_t retry_ns = 5'000'000'000;  // how long a failed transfer is tried again
  LogSink log;                            // may be empty
  std::function<TileName(ExtentId)> name;
  const TimelineMarks* marks = nullptr;  // may be null
};

class TileIo {
 public:
  TileIo(Executor& executor, ExtentStore& store, TileIoOptions options)
      : executor_(executor), store_(store), options_(std::move(options)) {}
  TileIo(const TileIo&) = delete;
  TileIo& operator=(const TileIo&) = delete;

  // For its coroutines.
  FramePool& frames() { return executor_.frames(); }

  Bytes size(ExtentId extent) const { return store_.size(extent); }

  // Reads a tile and verifies it.
  Task<> read(TileBuffer tile, IoPriority priority);
  // Computes the checksum of a tile, writes it and makes it the current version.
  Task<> write(TileBuffer tile);

  // The same in parts, so that checksums ride on a pass that touches the tiles anyway: fetch() what
  // the pass reads, process(), store() what it wrote.
  Task<> fetch(TileBuffer tile, IoPriority priority);
  // On a worker: verifies `inputs`, runs `pass`, and computes the checksums of `outputs`. The pass
  // runs only on inputs that are what was written, and once. `cost`: that of the pass.
  template <class Pass>
  Task<> process(std::span<const TileBuffer> inputs, std::span<TileBuffer> outputs, JobCost cost,
                 Pass pass);
  // The same with a pass in parts, pass(begin_elems, end_elems), each of which is in the cache when
  // its checksums are computed.
  template <class Pass>
  Task<> process(std::span<const TileBuffer> inputs, std::span<TileBuffer> outputs, JobCost cost,
                 Parts parts, Pass pass);
  Task<> store(TileBuffer tile);

  // Moves a tile's bytes, whatever they are, and returns how many. A write leaves garbage in place
  // of the tile. For measurements.
  Task<Bytes> probe(ExtentId extent, IoOp op, std::byte* data);

 private:
  static constexpr std::size_t kMostOutputs = kMaxKinds;

  struct Failure {
    IoOp op;
    ExtentId extent;
    ExtentStore::SlotIndex slot;
    std::int64_t result;  // bytes moved, -errno or Executor::kNoAnswer
  };

  // Called on workers.
  bool holds_what_was_written(const TileBuffer& tile) const;
  void seal(TileBuffer& tile) const;
  void clear_behind(const TileBuffer& tile) const;
  // Runs the pass and seals `outputs` part by part.
  void run_in_parts(std::span<TileBuffer> outputs, Parts parts,
                    const std::function<void(std::uint64_t, std::uint64_t)>& pass) const;

  std::string label(std::string_view what, ExtentId extent) const;
  Bytes checked_bytes(std::span<const TileBuffer> tiles) const;
  Task<> transfer(IoRequest request, ExtentId extent, ExtentStore::SlotIndex slot);
  Task<> read_again(TileBuffer tile);
  Error error(ErrorCode code, std::string_view message, int errnum, ExtentId extent,
              ExtentStore::SlotIndex slot) const;
  Error describe(const Failure& failure) const;
  void tell_retry(const Failure& failure) const;
  [[noreturn]] void throw_corrupt(ExtentId extent) const;

  Executor& executor_;
  ExtentStore& store_;
  const TileIoOptions options_;
};

template <class Pass>
Task<> TileIo::process(std::span<const TileBuffer> inputs, std::span<TileBuffer> outputs,
                       JobCost cost, Parts parts, Pass pass) {
  cost.checked += checked_bytes(outputs);
  return process(inputs, {}, cost,
                 [this, outputs, parts, pass] { run_in_parts(outputs, parts, std::ref(pass)); });
}

template <class Pass>
Task<> TileIo::process(std::span<const TileBuffer> inputs, std::span<TileBuffer> outputs,
                       JobCost cost, Pass pass) {
  cost.checked += checked_bytes(inputs) + checked_bytes(outputs);
  for (;;) {
    const TileBuffer* damaged = nullptr;
    co_await executor_.work(cost, [&] {
      for (const TileBuffer& tile : inputs) {
        if (damaged == nullptr && !holds_what_was_written(tile)) damaged = &tile;
      }
      if (damaged != nullptr) return;
      pass();
      for (TileBuffer& tile : outputs) seal(tile);
    });
    if (damaged == nullptr) co_return;
    co_await read_again(*damaged);
  }
}

}  // namespace strata
