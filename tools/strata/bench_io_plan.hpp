// What `strata bench io` will do: which tiles rest in its files and how many windows of which kind
// it runs, and so how many bytes it writes, known before it starts. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/config.hpp"
#include "strata/types.hpp"

namespace strata::tool {

struct BenchIoOptions {
  std::vector<std::string> directories;
  std::string json;              // empty: none
  Bytes bytes;                   // of all files; 0: 16 windows, or more where tiles need it
  std::vector<Bytes> tiles;      // empty: 1, 4 and 16 MiB
  std::vector<unsigned> depths;  // empty: 4, 8 and 16
  unsigned windows = 0;          // of each kind in the main measurement; 0: 100, 4 when quick
  unsigned workers = 1;          // as engine.workers
  bool quick = false;
  bool allow_tmpfs = false;
  Config::IoBackend backend = Config::IoBackend::automatic;
};

// Tiles of one size; a window moves some of them.
struct TileSet {
  Bytes tile;
  std::uint32_t count = 0;
};

// A choice of the sweep.
struct TileAndDepth {
  std::size_t set = 0;  // index into BenchIoPlan::sets
  unsigned depth = 0;
};

struct BenchIoPlan {
  Bytes window;
  std::vector<TileSet> sets;  // one for each tile size
  TileSet many;               // the many tensors
  std::vector<TileAndDepth> sweep;
  unsigned most_depth = 0;
  std::uint32_t directories = 0;

  // Rounds. In each round every alternative runs one window of every kind.
  unsigned sweep_rounds = 0;
  unsigned main_rounds = 0;       // library, bare loop, with checksums; read, write
  unsigned mix_rounds = 0;        // library and bare loop; half reads and half writes
  unsigned many_rounds = 0;       // many tensors and sequential; read, write
  unsigned directory_rounds = 0;  // for each of several directories; read, write

  std::uint64_t tiles_of(Bytes tile) const { return window / tile; }
  Bytes file_bytes() const;
  // With the first pass over the files. Without a bare loop it is less.
  Bytes bytes_to_write() const;
  Bytes bytes_to_read() const;
};

// Throws Error(invalid_argument) when an option is impossible.
BenchIoPlan make_bench_io_plan(const BenchIoOptions& options);

}  // namespace strata::tool
