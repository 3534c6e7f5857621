// The NVMe tier as a session sets it up, without a session: files in an ExtentStore, staging
// memory, BlockIo, executor, workers and TileIo; and the bare loop over the same files and memory.
// Runs windows on either and takes their time.
//
// All bytes of memory and files are one pattern with a period of 256 KiB, the smallest tile, so
// that whatever either path writes is what the checksums say.
//
// Ownership: the files are deleted when the rig ends. Thread: one at a time.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bare_loop.hpp"
#include "bench_io_plan.hpp"
#include "engine/executor.hpp"
#include "engine/tile_io.hpp"
#include "engine/worker_pool.hpp"
#include "memory/extent_store.hpp"
#include "memory/region.hpp"
#include "strata/block_io.hpp"
#include "strata/device.hpp"

namespace strata::tool {

struct TileMove {
  ExtentId extent;
  bool write = false;
};

struct WindowTime {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads of the process, in the kernel too
};

class BenchIoRig {
 public:
  // Makes files and memory and writes nothing yet. Throws Error as ExtentStore::open does. Keeps
  // both references. Blocks.
  BenchIoRig(const BenchIoOptions& options, const BenchIoPlan& plan);
  ~BenchIoRig();
  BenchIoRig(const BenchIoRig&) = delete;
  BenchIoRig& operator=(const BenchIoRig&) = delete;

  // Moves tiles of one size, `depth` of them at once. With `latencies_s` the time of each tile is
  // appended: from the submission of a read until it was verified, from the checksum of a write
  // until it was committed. Throws Error as TileIo does. Blocks. Pre: what is read was
  // written before, with the same `verify`.
  WindowTime run_library(std::span<const TileMove> moves, unsigned depth, bool verify,
                         std::vector<double>* latencies_s = nullptr);
  // The same bytes through the bare loop. Pre: has_bare_loop().
  WindowTime run_bare(std::span<const TileMove> moves, unsigned depth);

  // Call it once the library's path has moved something: what it could register is known then.
  void make_bare_loop();
  bool has_bare_loop() const { return bare_ != nullptr; }
  const std::string& why_no_bare_loop() const { return why_no_bare_loop_; }

  std::span<const ExtentId> set(std::size_t index) const { return sets_[index]; }
  std::span<const ExtentId> many() const { return many_; }
  // Which of the directories holds the extent.
  std::uint32_t directory_of(ExtentId extent) const { return directory_of_[extent.value]; }

  std::string_view io_name() const { return io_->name(); }
  bool uses_registered_memory() const { return io_->uses_registered_memory(); }
  Bytes page_size() const { return region_.page_size(); }
  Bytes bytes_written() const { return io_->counters().written + bare_written_; }
  // What memory, disk and tile I/O had to say since the last call.
  std::vector<std::string> take_notices();

 private:
  class Notices;

  std::vector<ExtentId> add_extents(const TileSet& set);
  void find_files();
  void fill_memory();
  TileIoOptions tile_io_options(bool verify) const;

  const BenchIoOptions& options_;
  const BenchIoPlan& plan_;
  const std::string run_;
  const std::shared_ptr<Notices> notices_;
  HostRegion region_;
  std::unique_ptr<BlockIo> io_;
  ExtentStore store_;
  std::vector<std::vector<ExtentId>> sets_;
  std::vector<ExtentId> many_;
  std::uint32_t streams_ = 0;
  std::vector<std::string> paths_;           // by directory
  std::vector<std::uint32_t> directory_of_;  // by extent
  std::unique_ptr<Device> device_;
  WorkerPool workers_;
  Executor executor_;
  TileIo verified_;
  TileIo unverified_;
  std::unique_ptr<BareLoop> bare_;
  std::string why_no_bare_loop_;
  Bytes bare_written_;
  std::optional<EngineThread> engine_;  // last: ends before what it drives
};

}  // namespace strata::tool
