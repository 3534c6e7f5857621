// Moving tiles between staging slabs and their homes.
#include <fmt/format.h>

#include <cstring>

#include "engine/engine.hpp"
#include "strata/error.hpp"

namespace strata {

// Where an I/O result becomes an Error: the one place for the NVMe tier.
Task<> Engine::file_transfer(IoOp op, std::uint32_t segment, const Extent& extent, KindId kind,
                             std::byte* data) {
  const IoRequest request = store_.request(op, extent, data);
  const std::int64_t result = co_await executor_.io(request);
  if (result == static_cast<std::int64_t>(request.size.value)) co_return;
  const bool reading = op == IoOp::read;
  const int errnum = result < 0 ? static_cast<int>(-result) : 0;
  throw Error(
      io_error_code(errnum),
      fmt::format(
          "{} {} {} the nvme tier failed{}; the step was not completed",
          reading ? "reading" : "writing", g_.table[kind].name, reading ? "from" : "to",
          result >= 0 ? fmt::format(" after {} bytes (the file was truncated)", result) : ""),
      {.errnum = errnum,
       .path = store_.path_of(extent),
       .offset_bytes = extent.offset_bytes,
       .size = request.size,
       .unit = g_.layout.units[g_.layout.segments[segment].unit.value].name,
       .rank = g_.rank});
}

Task<> Engine::store_task(std::uint32_t segment, std::uint32_t tile_index, KindId kind,
                          std::byte* data) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileHome& home = map_.tile(segment, tile_index).homes[kind.value];
  const Bytes size = tile_bytes(tile, g_.table[kind].dtype);
  switch (tile.home(kind)) {
    case Tier::device:
      copy_in(copy_in_stream_, home.memory, data, size);
      co_await executor_.event(device_.record(copy_in_stream_));
      break;
    case Tier::host: std::memcpy(home.memory, data, size.value); break;
    case Tier::nvme: co_await file_transfer(IoOp::write, segment, home.extent, kind, data); break;
  }
}

Task<> Engine::load_task(std::uint32_t segment, std::uint32_t tile_index, KindId kind,
                         std::byte* data) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileHome& home = map_.tile(segment, tile_index).homes[kind.value];
  const Bytes size = tile_bytes(tile, g_.table[kind].dtype);
  switch (tile.home(kind)) {
    case Tier::device:
      copy_out(copy_out_stream_, data, home.memory, size);
      co_await executor_.event(device_.record(copy_out_stream_));
      break;
    case Tier::host: std::memcpy(data, home.memory, size.value); break;
    case Tier::nvme: co_await file_transfer(IoOp::read, segment, home.extent, kind, data); break;
  }
}

Task<SlabSet> Engine::borrow_task(std::size_t count) {
  co_return co_await checkpoint_slabs_.acquire(count);
}

Task<> Engine::return_task(SlabSet slabs) {
  const SlabSet given_back = std::move(slabs);
  co_return;
}

Task<> Engine::hold_until(Event event, SlabSet slabs) {
  const SlabSet held = std::move(slabs);
  co_await executor_.event(event);
}

Task<> Engine::drain_task() {
  // Errors of reductions nobody waited for: the session has failed before, or is closing.
  [[maybe_unused]] const std::exception_ptr told = co_await reductions_.settle();
  co_await background_.join();
}

void Engine::copy_in(StreamId stream, std::byte* device, const std::byte* host, Bytes size) {
  device_.copy(stream, device, host, size, CopyKind::host_to_device);
  copied_in_ += size.value;
}

void Engine::copy_out(StreamId stream, std::byte* host, const std::byte* device, Bytes size) {
  device_.copy(stream, host, device, size, CopyKind::device_to_host);
  copied_out_ += size.value;
}

void Engine::check_communicator() const {
  if (const std::optional<Error> failure = communicator_.failure()) throw Error(*failure);
}

}  // namespace strata
