// Memory that is carved once and lent for long: the device arena and the pinned host region.
// Carver hands out consecutive pieces and never takes one back; HostRegion is the mapping that
// host pieces and staging slabs are carved from.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

// Anonymous memory, in RAM from the start (so that a shortage shows at open()), locked where
// RLIMIT_MEMLOCK allows. On 2 MiB pages where the kernel gives them: from its pool (MAP_HUGETLB) if
// asked for, then transparent ones (madvise(2)), then 4 KiB pages.
class HostRegion {
 public:
  enum class Pages : std::uint8_t { huge_tlb, transparent_huge, small };

  struct Options {
    std::string what = "host memory";  // for messages
    bool for_transfers = false;        // tries the pool, and tells which pages were got
    bool addresses_only = false;       // of a simulation: no memory, reads give zeros, no writes
    LogSink log;                       // may be empty
  };

  // Throws Error(budget_exceeded) when the kernel refuses the memory. Tells `log` once when it
  // could not be locked. Blocks.
  HostRegion(Bytes size, const Options& options);
  ~HostRegion();
  HostRegion(const HostRegion&) = delete;
  HostRegion& operator=(const HostRegion&) = delete;

  std::span<std::byte> memory() const { return memory_; }
  Pages pages() const { return pages_; }
  Bytes page_size() const;

 private:
  bool map_from_pool(Bytes size);
  void map_with_advice(Bytes size, const Options& options);
  void map_addresses(Bytes size, const Options& options);
  void tell_pages(const Options& options) const;

  std::span<std::byte> mapping_;
  std::span<std::byte> memory_;  // 2 MiB aligned part of the mapping
  Pages pages_ = Pages::small;
};

}  // namespace strata
