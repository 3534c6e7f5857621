// Port: the ranks that train one model together. Collectives are enqueued on a stream of the
// attached device and run in stream order, as NCCL's do; every rank enqueues the same collectives
// in the same order. A small control plane on the host agrees, exchanges and aborts.
//
// Determinism: reduce_scatter() and all_reduce() sum in fp32, in rank order, and round once to
// the wire dtype (round to nearest even), whatever the transport. NCCL promises what NCCL promises.
// Errors: a collective cannot throw. When a peer is lost the work on the stream ends early, its
// buffers hold garbage, and failure() says why.
// Thread: collectives from one thread at a time; the control plane from any thread, one call at a
// time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/device.hpp"
#include "strata/error.hpp"
#include "strata/log.hpp"
#include "strata/types.hpp"

namespace strata {

// `data` holds size() shards of `shard_elems` elements, in rank order, in device memory.
struct ShardedBuffer {
  void* data = nullptr;
  std::uint64_t shard_elems = 0;
  DType dtype = DType::bf16;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::string_view name() const = 0;
  virtual Rank rank() const = 0;
  virtual std::uint32_t size() const = 0;
  // Position among, and number of, the ranks that run on this host.
  virtual Rank host_rank() const = 0;
  virtual std::uint32_t host_size() const = 0;

  // Host memory that collectives stage through, charged to the host budget; 0 if none.
  virtual Bytes staging_bytes() const = 0;

  // Whether collectives need a device whose memory the CPU can address (Device::host_addressable).
  virtual bool host_memory_only() const { return false; }

  // Names the device whose streams and memory the collectives use; it outlives the communicator's
  // use. Collective over all ranks. Blocks.
  virtual void attach(Device& device) = 0;

  // In place: before, this rank's shard stands at its own position; after, all shards do.
  // One call per unit: the buffers of one call travel together.
  virtual void all_gather(StreamId stream, std::span<const ShardedBuffer> buffers) = 0;

  // In place: before, full buffers; after, this rank's position holds the sum of that shard over
  // all ranks. The other positions are unspecified.
  virtual void reduce_scatter(StreamId stream, std::span<const ShardedBuffer> buffers) = 0;

  virtual void broadcast(StreamId stream, void* data, Bytes size, Rank root) = 0;
  virtual void all_reduce(StreamId stream, void* data, std::uint64_t count_elems, DType dtype) = 0;

  // Ranks that pass the same color form a new communicator, ordered by (key, rank). Collective.
  // The result is attached to the same device, if any, and ends before that is closed. Blocks.
  virtual std::unique_ptr<Communicator> split(std::uint32_t color, std::uint32_t key) = 0;

  // Small all-gather on the host: all[r] = what rank r passed. Every rank passes mine.size() bytes,
  // at most kMaxExchange. Throws Error(rank_lost) naming the ranks that did not arrive within the
  // timeout. Blocks until every rank has called.
  static constexpr std::size_t kMaxExchange = std::size_t{1} << 20;
  virtual std::vector<std::byte> exchange(std::span<const std::byte> mine) = 0;

  // Like exchange(), and throws Error(diverged) naming the ranks whose bytes differ from rank 0's.
  // `what` completes the sentence "ranks disagree on <what>".
  void agree(std::span<const std::byte> mine, std::string_view what);

  // How long the control plane and a collective wait for a peer. Default 60 s.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // The first failure of a collective, if any. Does not block.
  virtual std::optional<Error> failure() const = 0;

  // Tells the peers, as far as they can be told, that this rank gives up; later and waiting calls
  // on them end with Error(rank_lost) and `reason`. Does not block.
  virtual void abort(std::string_view reason) = 0;
};

// One rank, no peers.
std::unique_ptr<Communicator> make_self_communicator();

struct MpiOptions {
  bool shared_memory = true;  // windows between ranks of one host; false: messages only
  Bytes window = 4_MiB;       // per rank, staged through by collectives
};

// All ranks of MPI_COMM_WORLD; initialises MPI when the caller has not, and then finalises it when
// the communicator is destroyed. Throws Error(not_supported) in a build without MPI. Blocks.
std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options = {});

struct NcclOptions {
  std::chrono::milliseconds rendezvous_timeout{60'000};
  LogSink log = {};  // hears what NCCL cannot do here
};

// The ranks that an MPI launcher or the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)
// describes, one GPU each; a single rank when neither does. MPI is used to meet only; it ends
// afterwards unless the program has initialised it, and cannot start again. Throws
// Error(not_supported) in a build without NCCL, Error(config) or Error(rank_lost) when the ranks do
// not meet. Blocks.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options = {});

struct TcpOptions {
  std::chrono::milliseconds rendezvous_timeout{60'000};
};

// The ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe (torchrun's, or Slurm's
// SLURM_PROCID and SLURM_NTASKS in place of the first two), over TCP. Throws Error(config), naming
// the variable, or Error(rank_lost) when the ranks do not meet within the timeout. Blocks.
std::unique_ptr<Communicator> make_tcp_communicator(const TcpOptions& options = {});

// True when the process was started by an MPI launcher with more than one rank.
bool launched_by_mpi();

// True when the environment describes more than one rank, as for make_tcp_communicator().
bool launched_by_environment();

}  // namespace strata
