// Data plane between ranks of one host: each rank has a window of memory that all of them map.
// A rank copies a chunk into one half of its window and publishes it by a counter; the peers read
// it there, into their buffers or straight into the sum, and count it as consumed. The other half
// takes the next chunk meanwhile. MPI only allocates the windows; no MPI call moves payload, so
// the path needs no cross-memory attach and works in containers that forbid it.
//
// Counters of a window are written by its owner only and never decrease. Chunk s (1, 2, ...) is
// the same piece of the same collective on every rank; it stands in half s % 2.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "mpi/control_plane.hpp"
#include "mpi/data_plane.hpp"

namespace strata::mpi {

class WindowPlane final : public DataPlane {
 public:
  // Pre: all ranks of `control` run on this host. Collective. Blocks.
  WindowPlane(ControlPlane& control, Bytes window);

  void all_gather(const Shards& shards) override;
  void reduce_scatter(const Shards& shards) override;
  void broadcast(std::byte* data, std::uint64_t size_bytes, std::uint32_t root) override;
  Bytes staging_bytes() const override;
  void free() override;

 private:
  struct Progress;

  std::uint32_t rank() const { return control_.rank(); }
  std::uint32_t size() const { return control_.size(); }
  Progress& progress(std::uint32_t owner) const;
  std::byte* slot(std::uint32_t owner, std::uint64_t chunk) const;

  // Runs fill(k, slot) and then use(k, chunk) for k = 0 .. count - 1, filling ahead where possible.
  template <class Fill, class Use>
  void pipeline(std::string_view what, std::uint64_t count, Fill&& fill, Use&& use);
  bool slot_is_free(std::uint64_t chunk) const;
  bool has_consumed(std::uint32_t peer, std::uint64_t chunk) const;
  bool has_published(std::uint32_t peer, std::uint64_t chunk) const;
  template <class Condition>
  std::vector<std::uint32_t> ranks_without(Condition&& condition) const;
  void wait_for_slot(std::string_view what, std::uint64_t chunk);
  void wait_for_peer(std::string_view what, std::uint32_t peer, std::uint64_t chunk);

  ControlPlane& control_;
  std::uint64_t slot_bytes_;
  std::uint64_t window_bytes_;
  MPI_Win win_ = MPI_WIN_NULL;
  std::vector<std::byte*> windows_;  // by rank, as mapped here
  std::uint64_t chunks_done_ = 0;
  std::vector<const void*> inputs_;  // of one sum, by rank
};

}  // namespace strata::mpi
