// Moving tiles between staging slabs and their homes.
#include <fmt/format.h>

#include <cstring>

#include "engine/engine.hpp"
#include "strata/error.hpp"

namespace strata {
namespace {

constexpr std::int64_t kOverduePauseNs = 1'000'000;

}  // namespace

Task<> Engine::store_task(std::uint32_t segment, std::uint32_t tile_index, KindId kind,
                          std::byte* data) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileHome& home = map_.tile(segment, tile_index).homes[kind.value];
  const Bytes size = tile_bytes(tile, g_.table[kind].dtype);
  switch (tile.home(kind)) {
    case Tier::device:
      copy_in(label(g_.table[kind].name, g_.layout.segments[segment].unit), home.memory, data,
              size);
      co_await executor_.event(device_.record(copy_in_stream_));
      break;
    case Tier::host:
      if (kind == kParamKind) co_await await_gathers();
      std::memcpy(home.memory, data, size.value);
      break;
    case Tier::nvme: co_await tile_io_.write(on_nvme(segment, tile_index, kind, data)); break;
  }
}

Task<> Engine::load_task(std::uint32_t segment, std::uint32_t tile_index, KindId kind,
                         std::byte* data) {
  const Tile& tile = tile_of(segment, tile_index);
  const TileHome& home = map_.tile(segment, tile_index).homes[kind.value];
  const Bytes size = tile_bytes(tile, g_.table[kind].dtype);
  switch (tile.home(kind)) {
    case Tier::device:
      copy_out(label(g_.table[kind].name, g_.layout.segments[segment].unit), data, home.memory,
               size);
      co_await executor_.event(device_.record(copy_out_stream_));
      break;
    case Tier::host: std::memcpy(data, home.memory, size.value); break;
    case Tier::nvme:
      co_await tile_io_.read(on_nvme(segment, tile_index, kind, data), IoPriority::stage);
      break;
  }
}

// A gather returns when its copies are enqueued: until they have run, parameters on the host and on
// the device must stay as they are.
Task<> Engine::await_gathers() { co_await executor_.event(device_.record(copy_in_stream_)); }

Task<Event> Engine::issue_task(Event before,
                               const std::function<void(Communicator&, StreamId)>& enqueue) {
  Turns::Turn turn = collectives_.take();
  co_await turn.reached();
  try {
    device_.wait(collective_stream_, before);
    const TimelineMarks::Mark mark = marks_.begin(collective_stream_);
    enqueue(communicator_, collective_stream_);
    marks_.end(mark, collective_stream_, TimelineRow::collectives, marks_.label("issue", ""));
    check_links();
  } catch (...) {
    collectives_.fail(std::current_exception());
    throw;
  }
  co_return device_.record(collective_stream_);
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
  co_await executor_.fired(event);
}

Task<> Engine::drain_task() {
  drop_all_but({});
  drop_fetched_activations();
  // Errors nobody waited for: the session has failed before, or is closing.
  for (TaskGroup* group : {&fetches_, &reductions_, &updates_}) {
    [[maybe_unused]] const std::exception_ptr told = co_await group->settle();
  }
  co_await background_.join();
  // Memory of a request without an answer is not ours to free.
  if (executor_.has_overdue_io() && log_) {
    log_(LogLevel::warning,
         "waiting for the disk to let go of memory: requests without an answer are still running");
  }
  while (executor_.has_overdue_io()) co_await executor_.pause(kOverduePauseNs);
}

void Engine::copy_in(std::string entry, std::byte* device, const std::byte* host, Bytes size) {
  const TimelineMarks::Mark mark = marks_.begin(copy_in_stream_);
  device_.copy(copy_in_stream_, device, host, size, CopyKind::host_to_device);
  marks_.end(mark, copy_in_stream_, TimelineRow::host_to_device, std::move(entry));
  copied_in_ += size.value;
}

void Engine::copy_out(std::string entry, std::byte* host, const std::byte* device, Bytes size) {
  const TimelineMarks::Mark mark = marks_.begin(copy_out_stream_);
  device_.copy(copy_out_stream_, host, device, size, CopyKind::device_to_host);
  marks_.end(mark, copy_out_stream_, TimelineRow::device_to_host, std::move(entry));
  copied_out_ += size.value;
}

void Engine::check_links() const {
  if (const std::optional<Error> failure = device_.failure()) throw Error(*failure);
  if (const std::optional<Error> failure = communicator_.failure()) throw Error(*failure);
}

}  // namespace strata
