// The memory of a CPU device: one anonymous mapping, aligned for huge pages (docs/architecture.md:
// 4 KiB pages cost three quarters of the I/O rate). Pages that nobody touches cost nothing, so an
// arena may be declared larger than it will be used. Unmapped by the destructor.
#pragma once

#include <cstddef>
#include <span>

#include "strata/types.hpp"

namespace strata {

class HostArena {
 public:
  // Throws Error(device) when the address space or memory cannot be had.
  explicit HostArena(Bytes size);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Exactly the size that was asked for; zeroed; starts at a multiple of 2 MiB.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  Bytes mapped_;
  std::span<std::byte> bytes_;
};

}  // namespace strata
