#include "mpi/message_plane.hpp"

#include <algorithm>

#include "base/reduce.hpp"

namespace strata::mpi {
namespace {

constexpr int kTag = 0;
constexpr std::uint64_t kCacheLine = 64;
// One message in place. Far below the int that MPI counts with, and enough to hide its start.
constexpr std::uint64_t kMessageBytes = std::uint64_t{16} << 20;

std::uint64_t chunks(std::uint64_t total_bytes, std::uint64_t chunk_bytes) {
  return (total_bytes + chunk_bytes - 1) / chunk_bytes;
}

}  // namespace

MessagePlane::MessagePlane(MPI_Comm comm, ControlPlane& control, Bytes staging)
    : comm_(comm),
      control_(control),
      staging_(staging.value),
      slice_bytes_(std::min(kMessageBytes, staging.value / 2 / (control.size() - 1)) / kCacheLine *
                   kCacheLine),
      finished_(2 * control.size()),
      inputs_(control.size()) {
  const auto lock = MpiProcess::instance().lock();
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

void MessagePlane::free() {
  const auto lock = MpiProcess::instance().lock();
  check(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

std::byte* MessagePlane::slice(std::uint64_t k, std::uint32_t source) {
  const std::uint64_t position = source < rank() ? source : source - 1;
  return staging_.data() + (k % 2 * (size() - 1) + position) * slice_bytes_;
}

void MessagePlane::all_gather(const Shards& shards) {
  const auto post = [&](std::uint64_t k, Batch& batch) {
    const std::uint64_t offset = k * kMessageBytes;
    for (std::uint32_t step = 1; step < size(); ++step) {
      const std::uint32_t from = (rank() + size() - step) % size();
      const std::uint32_t to = (rank() + step) % size();
      receive(batch, shards.at(from, offset), shards.piece(from, offset, kMessageBytes), from);
      send(batch, shards.at(rank(), offset), shards.piece(rank(), offset, kMessageBytes), to);
    }
  };
  pipeline("all_gather", chunks(shards.shard_bytes, kMessageBytes), post, [](std::uint64_t) {});
}

void MessagePlane::reduce_scatter(const Shards& shards) {
  const auto post = [&](std::uint64_t k, Batch& batch) {
    const std::uint64_t offset = k * slice_bytes_;
    for (std::uint32_t step = 1; step < size(); ++step) {
      const std::uint32_t from = (rank() + size() - step) % size();
      const std::uint32_t to = (rank() + step) % size();
      receive(batch, slice(k, from), shards.piece(rank(), offset, slice_bytes_), from);
      send(batch, shards.at(to, offset), shards.piece(to, offset, slice_bytes_), to);
    }
  };
  const auto finish = [&](std::uint64_t k) {
    std::byte* const own = shards.at(rank(), k * slice_bytes_);
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      inputs_[peer] = peer == rank() ? own : slice(k, peer);
    }
    const std::uint64_t bytes = shards.piece(rank(), k * slice_bytes_, slice_bytes_);
    sum_in_rank_order(own, inputs_, bytes / size_of(shards.dtype).value, shards.dtype);
  };
  pipeline("reduce_scatter", chunks(shards.shard_bytes, slice_bytes_), post, finish);
}

void MessagePlane::broadcast(std::byte* data, std::uint64_t size_bytes, std::uint32_t root) {
  const auto post = [&](std::uint64_t k, Batch& batch) {
    std::byte* const piece = data + k * kMessageBytes;
    const std::uint64_t bytes = std::min(kMessageBytes, size_bytes - k * kMessageBytes);
    if (rank() != root) return receive(batch, piece, bytes, root);
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != root) send(batch, piece, bytes, peer);
    }
  };
  pipeline("broadcast", chunks(size_bytes, kMessageBytes), post, [](std::uint64_t) {});
}

template <class Post, class Finish>
void MessagePlane::pipeline(std::string_view what, std::uint64_t count, Post&& post,
                            Finish&& finish) {
  const auto begin = [&](std::uint64_t k) {
    Batch& batch = batches_[k % 2];
    batch.requests.clear();
    batch.peers.clear();
    const auto lock = MpiProcess::instance().lock();
    post(k, batch);
  };
  try {
    if (count > 0) begin(0);
    for (std::uint64_t k = 0; k < count; ++k) {
      if (k + 1 < count) begin(k + 1);
      wait_for(what, batches_[k % 2]);
      finish(k);
    }
  } catch (const Error& error) {
    control_.give_up(error.what());  // while MPI still works
    abandon();
    throw;
  }
}

void MessagePlane::send(Batch& batch, const std::byte* data, std::uint64_t size_bytes,
                        std::uint32_t peer) {
  if (size_bytes == 0) return;
  batch.peers.push_back(peer);
  check(MPI_Isend(data, static_cast<int>(size_bytes), MPI_BYTE, static_cast<int>(peer), kTag, comm_,
                  &batch.requests.emplace_back(MPI_REQUEST_NULL)),
        "MPI_Isend");
}

void MessagePlane::receive(Batch& batch, std::byte* data, std::uint64_t size_bytes,
                           std::uint32_t peer) {
  if (size_bytes == 0) return;
  batch.peers.push_back(peer);
  check(MPI_Irecv(data, static_cast<int>(size_bytes), MPI_BYTE, static_cast<int>(peer), kTag, comm_,
                  &batch.requests.emplace_back(MPI_REQUEST_NULL)),
        "MPI_Irecv");
}

void MessagePlane::wait_for(std::string_view what, Batch& batch) {
  const auto missing = [&] {
    std::vector<std::uint32_t> ranks;
    for (std::size_t i = 0; i < batch.requests.size(); ++i) {
      if (batch.requests[i] != MPI_REQUEST_NULL) ranks.push_back(batch.peers[i]);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  control_.wait(
      what, [&] { return advance(batch); }, missing);
}

bool MessagePlane::advance(Batch& batch) {
  const auto lock = MpiProcess::instance().lock();
  int finished = 0;
  check(MPI_Testsome(static_cast<int>(batch.requests.size()), batch.requests.data(), &finished,
                     finished_.data(), MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  if (finished == MPI_UNDEFINED) return true;  // no request is left
  return std::all_of(batch.requests.begin(), batch.requests.end(),
                     [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
}

// Takes back what MPI lets us take back, and leaves MPI if anything remains.
void MessagePlane::abandon() try {
  const auto lock = MpiProcess::instance().lock();
  bool any_left = false;
  for (Batch& batch : batches_) {
    for (MPI_Request& request : batch.requests) {
      if (request == MPI_REQUEST_NULL) continue;
      int done = 0;
      any_left = MPI_Cancel(&request) != MPI_SUCCESS ||
                 MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0 ||
                 any_left;
    }
  }
  if (any_left) MpiProcess::instance().leave_for_good();
} catch (const Error&) {
  // Another communicator made this process leave MPI already.
}

}  // namespace strata::mpi
