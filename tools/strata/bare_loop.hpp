// What the disk gives to a loop that does nothing else: one io_uring, O_DIRECT, registered files
// and memory, a queue kept full. `strata bench io` holds the library's own path against it.
//
// Ownership: borrows the memory; opens the files itself, without their lock.
// Thread: the one that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strata/types.hpp"

namespace strata::tool {

struct BareTransfer {
  std::uint32_t file = 0;  // in BareLoopOptions::paths
  std::uint64_t offset_bytes = 0;
  bool write = false;
};

struct BareLoopOptions {
  std::vector<std::string> paths;
  std::span<std::byte> memory;
  unsigned depth = 1;  // transfers at once, at most
  bool register_memory = true;
};

class BareLoop {
 public:
  virtual ~BareLoop() = default;

  // Moves `tile` bytes for each transfer, `depth` at once, each through a piece of the memory.
  // Throws Error(io) when one fails or comes short, once none is in flight. Blocks.
  // Pre (asserted): depth as announced, and depth tiles fit into the memory.
  virtual void run(std::span<const BareTransfer> transfers, Bytes tile, unsigned depth) = 0;

  virtual bool memory_is_registered() const = 0;
};

// Throws Error: not_supported, with the reason, where there is no io_uring; io for a file.
std::unique_ptr<BareLoop> make_bare_loop(const BareLoopOptions& options);

}  // namespace strata::tool
