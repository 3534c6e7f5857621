// Memory that is carved once and lent for long: the device arena and the pinned host region.
// Carver hands out consecutive pieces and never takes one back; HostRegion is the mapping that
// host pieces and staging slabs are carved from.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <span>

#include "strata/log.hpp"
#include "strata/types.hpp"

namespace strata {

// Every piece of device or host memory starts at a multiple of this (256 bytes: what GPUs ask of a
// tensor, and several cache lines).
inline constexpr Bytes kPieceAlign{256};

class Carver {
 public:
  Carver() = default;
  explicit Carver(std::span<std::byte> memory) : memory_(memory) {}

  // The next `size` bytes, rounded up to kPieceAlign. Pre (asserted): they are left.
  std::span<std::byte> carve(Bytes size);
  Bytes left() const { return Bytes{memory_.size() - used_}; }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
};

// Anonymous memory on 2 MiB pages where the kernel gives them, locked where RLIMIT_MEMLOCK allows.
class HostRegion {
 public:
  // Throws Error(budget_exceeded) when the kernel refuses the mapping. Tells `log` once when the
  // memory could not be locked. Blocks.
  HostRegion(Bytes size, const LogSink& log);
  ~HostRegion();
  HostRegion(const HostRegion&) = delete;
  HostRegion& operator=(const HostRegion&) = delete;

  std::span<std::byte> memory() const { return memory_; }

 private:
  std::span<std::byte> mapping_;
  std::span<std::byte> memory_;  // 2 MiB aligned part of the mapping
};

}  // namespace strata
