// The device memory of one GPU that Strata owns: one allocation, made once.
// Thread: any; the constructor and the destructor block.
#pragma once

#include <cstddef>
#include <span>

#include "strata/types.hpp"

namespace strata::cuda {

enum class ArenaSource : std::uint8_t {
  malloc,  // cudaMalloc
  pool,    // the device's stream-ordered pool, shared with other users of cudaMallocAsync
};

class Arena {
 public:
  // Throws Error(budget_exceeded), with what is free, when the GPU cannot give that much.
  Arena(int device, Bytes size, ArenaSource source);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const int device_;
  const ArenaSource source_;
  std::span<std::byte> bytes_;
};

}  // namespace strata::cuda
