// Data plane by messages between every pair of ranks: for ranks on several hosts, or where shared
// windows are not wanted. Gathered shards arrive in place; slices to be summed arrive in a staging
// buffer of fixed size, one half of which fills while the other is summed.
//
// A failure can leave messages half-way that point into callers' buffers, so that this process
// then stops using MPI altogether (MpiProcess::leave_for_good()).
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "mpi/control_plane.hpp"
#include "mpi/data_plane.hpp"

namespace strata::mpi {

class MessagePlane final : public DataPlane {
 public:
  // Takes over `comm`, which has the same ranks as `control`.
  MessagePlane(MPI_Comm comm, ControlPlane& control, Bytes staging);

  void all_gather(const Shards& shards) override;
  void reduce_scatter(const Shards& shards) override;
  void broadcast(std::byte* data, std::uint64_t size_bytes, std::uint32_t root) override;
  Bytes staging_bytes() const override { return Bytes{staging_.size()}; }
  void free() override;

 private:
  // The messages of one chunk.
  struct Batch {
    std::vector<MPI_Request> requests;
    std::vector<std::uint32_t> peers;  // by request
  };

  std::uint32_t rank() const { return control_.rank(); }
  std::uint32_t size() const { return control_.size(); }
  // The slice from `source` in the staging half of chunk k.
  std::byte* slice(std::uint64_t k, std::uint32_t source);

  // Runs post(k, batch) and then finish(k) for k = 0 .. count - 1, one chunk in flight ahead.
  template <class Post, class Finish>
  void pipeline(std::string_view what, std::uint64_t count, Post&& post, Finish&& finish);
  void send(Batch& batch, const std::byte* data, std::uint64_t size_bytes, std::uint32_t peer);
  void receive(Batch& batch, std::byte* data, std::uint64_t size_bytes, std::uint32_t peer);
  void wait_for(std::string_view what, Batch& batch);
  bool advance(Batch& batch);
  void abandon();

  MPI_Comm comm_;
  ControlPlane& control_;
  std::vector<std::byte> staging_;
  std::uint64_t slice_bytes_;
  std::array<Batch, 2> batches_;
  std::vector<int> finished_;        // scratch of MPI_Testsome
  std::vector<const void*> inputs_;  // of one sum, by rank
};

}  // namespace strata::mpi
