#include "mpi/window_plane.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <new>

#include "base/reduce.hpp"
#include "mpi/copy_to_window.hpp"

namespace strata::mpi {
namespace {

constexpr std::uint64_t kSlots = 2;
constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHeaderBytes = kPage;  // so that slots are page-aligned

// MPI puts windows anywhere in a mapping. Mappings of one file differ by whole pages, so every
// rank that rounds up finds the same byte.
std::byte* page_aligned(std::byte* window) {
  const auto address = reinterpret_cast<std::uintptr_t>(window);
  return window + (round_up(address, kPage) - address);
}

}  // namespace

// Stands at the start of each window.
struct WindowPlane::Progress {
  alignas(kCacheLine) std::atomic<std::uint64_t> published = 0;
  alignas(kCacheLine) std::atomic<std::uint64_t> consumed = 0;

  // Processes share the counters, so they must be plain memory operations.
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

WindowPlane::WindowPlane(ControlPlane& control, Bytes window)
    : control_(control),
      slot_bytes_(window.value / kSlots / kCacheLine * kCacheLine),
      window_bytes_(kPage + kHeaderBytes + kSlots * slot_bytes_),
      windows_(control.size()),
      inputs_(control.size()) {
  static_assert(sizeof(Progress) <= kHeaderBytes);
  const auto lock = MpiProcess::instance().lock();
  // Each rank's window is allocated by itself, so that it lies in pages of its own.
  MPI_Info info = MPI_INFO_NULL;
  check(MPI_Info_create(&info), "MPI_Info_create");
  check(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
  void* own = nullptr;
  const int result = MPI_Win_allocate_shared(static_cast<MPI_Aint>(window_bytes_), 1, info,
                                             control_.comm(), &own, &win_);
  check(MPI_Info_free(&info), "MPI_Info_free");
  check(result, "MPI_Win_allocate_shared (is /dev/shm full? MpiOptions::shared_memory = false)",
        ErrorCode::not_supported);
  check(MPI_Win_set_errhandler(win_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    MPI_Aint bytes = 0;
    int unit = 0;
    check(MPI_Win_shared_query(win_, static_cast<int>(peer), &bytes, &unit, &windows_[peer]),
          "MPI_Win_shared_query");
    windows_[peer] = page_aligned(windows_[peer]);
  }
  new (windows_[rank()]) Progress;
  check(MPI_Barrier(control_.comm()), "MPI_Barrier");
}

void WindowPlane::free() {
  const auto lock = MpiProcess::instance().lock();
  check(MPI_Win_free(&win_), "MPI_Win_free");
}

Bytes WindowPlane::staging_bytes() const { return Bytes{window_bytes_}; }

WindowPlane::Progress& WindowPlane::progress(std::uint32_t owner) const {
  return *std::launder(reinterpret_cast<Progress*>(windows_[owner]));
}

std::byte* WindowPlane::slot(std::uint32_t owner, std::uint64_t chunk) const {
  return windows_[owner] + kHeaderBytes + chunk % kSlots * slot_bytes_;
}

void WindowPlane::all_gather(const Shards& shards) {
  const std::uint64_t count = (shards.shard_bytes + slot_bytes_ - 1) / slot_bytes_;
  const auto fill = [&](std::uint64_t k, std::byte* slot) {
    const std::uint64_t offset = k * slot_bytes_;
    copy_to_window(slot, shards.at(rank(), offset), shards.piece(rank(), offset, slot_bytes_));
  };
  const auto use = [&](std::uint64_t k, std::uint64_t chunk) {
    const std::uint64_t offset = k * slot_bytes_;
    for (std::uint32_t step = 1; step < size(); ++step) {
      const std::uint32_t peer = (rank() + step) % size();
      wait_for_peer("all_gather", peer, chunk);
      std::memcpy(shards.at(peer, offset), slot(peer, chunk),
                  shards.piece(peer, offset, slot_bytes_));
    }
  };
  pipeline("all_gather", count, fill, use);
}

void WindowPlane::reduce_scatter(const Shards& shards) {
  // A slot holds one slice for each peer; `target` skips its owner.
  const std::uint64_t slice_bytes = slot_bytes_ / (size() - 1) / kCacheLine * kCacheLine;
  const auto place = [&](std::uint32_t owner, std::uint32_t target) {
    return (target < owner ? target : target - 1) * slice_bytes;
  };
  const std::uint64_t count = (shards.shard_bytes + slice_bytes - 1) / slice_bytes;
  const auto fill = [&](std::uint64_t k, std::byte* slot) {
    const std::uint64_t offset = k * slice_bytes;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      copy_to_window(slot + place(rank(), peer), shards.at(peer, offset),
                     shards.piece(peer, offset, slice_bytes));
    }
  };
  const auto use = [&](std::uint64_t k, std::uint64_t chunk) {
    const std::uint64_t offset = k * slice_bytes;
    std::byte* const own = shards.at(rank(), offset);
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != rank()) wait_for_peer("reduce_scatter", peer, chunk);
      inputs_[peer] = peer == rank() ? own : slot(peer, chunk) + place(peer, rank());
    }
    const std::uint64_t bytes = shards.piece(rank(), offset, slice_bytes);
    sum_in_rank_order(own, inputs_, bytes / size_of(shards.dtype).value, shards.dtype);
  };
  pipeline("reduce_scatter", count, fill, use);
}

void WindowPlane::broadcast(std::byte* data, std::uint64_t size_bytes, std::uint32_t root) {
  const std::uint64_t count = (size_bytes + slot_bytes_ - 1) / slot_bytes_;
  const auto bytes_of = [&](std::uint64_t k) {
    return std::min(slot_bytes_, size_bytes - k * slot_bytes_);
  };
  const auto fill = [&](std::uint64_t k, std::byte* slot) {
    if (rank() == root) copy_to_window(slot, data + k * slot_bytes_, bytes_of(k));
  };
  const auto use = [&](std::uint64_t k, std::uint64_t chunk) {
    if (rank() == root) return;
    wait_for_peer("broadcast", root, chunk);
    std::memcpy(data + k * slot_bytes_, slot(root, chunk), bytes_of(k));
  };
  pipeline("broadcast", count, fill, use);
}

template <class Fill, class Use>
void WindowPlane::pipeline(std::string_view what, std::uint64_t count, Fill&& fill, Use&& use) {
  const std::uint64_t first = chunks_done_ + 1;
  Progress& own = progress(rank());
  std::uint64_t filled = 0;
  for (std::uint64_t used = 0; used < count; ++used) {
    while (filled < std::min(count, used + kSlots)) {
      const std::uint64_t chunk = first + filled;
      if (filled > used && !slot_is_free(chunk)) break;  // use what is there first
      wait_for_slot(what, chunk);
      fill(filled++, slot(rank(), chunk));
      own.published.store(chunk, std::memory_order_release);
    }
    use(used, first + used);
    own.consumed.store(first + used, std::memory_order_release);
  }
  chunks_done_ += count;
}

bool WindowPlane::slot_is_free(std::uint64_t chunk) const {
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (!has_consumed(peer, chunk - std::min(chunk, kSlots))) return false;
  }
  return true;
}

bool WindowPlane::has_consumed(std::uint32_t peer, std::uint64_t chunk) const {
  return progress(peer).consumed.load(std::memory_order_acquire) >= chunk;
}

bool WindowPlane::has_published(std::uint32_t peer, std::uint64_t chunk) const {
  return progress(peer).published.load(std::memory_order_acquire) >= chunk;
}

template <class Condition>
std::vector<std::uint32_t> WindowPlane::ranks_without(Condition&& condition) const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (!condition(peer)) ranks.push_back(peer);
  }
  return ranks;
}

void WindowPlane::wait_for_slot(std::string_view what, std::uint64_t chunk) {
  const std::uint64_t previous = chunk - std::min(chunk, kSlots);
  control_.wait(
      what, [&] { return slot_is_free(chunk); },
      [&] { return ranks_without([&](std::uint32_t r) { return has_consumed(r, previous); }); });
}

void WindowPlane::wait_for_peer(std::string_view what, std::uint32_t peer, std::uint64_t chunk) {
  control_.wait(
      what, [&] { return has_published(peer, chunk); },
      [&] { return ranks_without([&](std::uint32_t r) { return has_published(r, chunk); }); });
}

}  // namespace strata::mpi
