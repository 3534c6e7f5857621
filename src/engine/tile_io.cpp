#include "engine/tile_io.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata {
namespace {

constexpr std::int64_t kFirstPauseNs = 1'000'000;
constexpr std::int64_t kLongestPauseNs = 1'000'000'000;

std::span<std::byte> bytes_of(std::byte* data, Bytes size) { return {data, size.value}; }

}  // namespace

Task<> TileIo::read(TileBuffer tile, IoPriority priority) {
  co_await fetch(tile, priority);
  if (!options_.verify) co_return;
  const std::string entry = label("verify", tile.extent);
  co_await process(std::span<const TileBuffer>(&tile, 1), {}, {.label = entry}, [] {});
}

Task<> TileIo::write(TileBuffer tile) {
  const std::string entry = label("checksum", tile.extent);
  co_await process({}, std::span<TileBuffer>(&tile, 1), {.label = entry}, [] {});
  co_await store(tile);
}

bool TileIo::holds_what_was_written(const TileBuffer& tile) const {
  if (!options_.verify) return true;
  const auto bytes = bytes_of(tile.data, store_.transfer_size(tile.extent));
  return checksum(bytes, store_.seed(tile.extent)) == store_.checksum(tile.extent);
}

// What stands behind the tile in its last block is written as zeros and covered by the checksum.
void TileIo::clear_behind(const TileBuffer& tile) const {
  const Bytes size = store_.size(tile.extent);
  std::memset(tile.data + size.value, 0, (store_.transfer_size(tile.extent) - size).value);
}

void TileIo::seal(TileBuffer& tile) const {
  const Bytes whole = store_.transfer_size(tile.extent);
  clear_behind(tile);
  if (!options_.verify) return;
  tile.checksum = checksum(bytes_of(tile.data, whole), store_.next_seed(tile.extent));
}

std::string TileIo::label(std::string_view what, ExtentId extent) const {
  if (options_.marks == nullptr || !options_.marks->on()) return {};
  const TileName name = options_.name(extent);
  return fmt::format("{} {} {}", what, name.kind, name.unit);
}

Bytes TileIo::checked_bytes(std::span<const TileBuffer> tiles) const {
  Bytes sum;
  if (!options_.verify) return sum;
  for (const TileBuffer& tile : tiles) sum += store_.transfer_size(tile.extent);
  return sum;
}

void TileIo::run_in_parts(std::span<TileBuffer> outputs, Parts parts,
                          const std::function<void(std::uint64_t, std::uint64_t)>& pass) const {
  if (!options_.verify) {
    pass(0, parts.count);
    for (const TileBuffer& tile : outputs) clear_behind(tile);
    return;
  }
  STRATA_ASSERT(outputs.size() <= kMostOutputs, "more outputs than kinds");
  std::array<std::optional<Checksum>, kMostOutputs> sums;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    clear_behind(outputs[k]);
    sums[k].emplace(store_.next_seed(outputs[k].extent));
  }
  for (std::uint64_t begin = 0; begin < parts.count; begin += parts.part) {
    const std::uint64_t end = std::min(parts.count, begin + parts.part);
    pass(begin, end);
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const std::uint64_t elem = store_.size(outputs[k].extent).value / parts.count;
      // The last part has what stands behind the tile with it.
      const std::uint64_t stop =
          end == parts.count ? store_.transfer_size(outputs[k].extent).value : end * elem;
      sums[k]->add({outputs[k].data + begin * elem, stop - begin * elem});
    }
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) outputs[k].checksum = sums[k]->value();
}

// Tries until the transfer is whole or the time for it is over, and then tells what failed first.
// A request without an answer is not repeated: it may still be served.
Task<> TileIo::transfer(IoRequest request, ExtentId extent, ExtentStore::SlotIndex slot) {
  std::optional<Failure> first;
  std::int64_t give_up_ns = 0;
  std::int64_t pause_ns = kFirstPauseNs;
  for (;;) {
    const std::string entry = label(request.op == IoOp::read ? "read" : "write", extent);
    const std::int64_t begin_ns = entry.empty() ? 0 : executor_.now_ns();
    const std::int64_t result = co_await executor_.io(request);
    if (!entry.empty()) {
      options_.marks->add(TimelineRow::nvme, entry, begin_ns, executor_.now_ns());
    }
    if (result == static_cast<std::int64_t>(request.size.value)) co_return;
    const std::int64_t now_ns = executor_.now_ns();
    if (!first) give_up_ns = now_ns + options_.retry_ns;
    const bool over = result == Executor::kNoAnswer || now_ns >= give_up_ns;
    if (!first) {
      first = Failure{request.op, extent, slot, result};
      if (!over) tell_retry(*first);
    }
    if (over) throw describe(*first);
    co_await executor_.pause(pause_ns);
    pause_ns = std::min(2 * pause_ns, kLongestPauseNs);
  }
}

Task<> TileIo::fetch(TileBuffer tile, IoPriority priority) {
  if (!store_.was_written(tile.extent)) {
    const TileName name = options_.name(tile.extent);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} was read before it was set: call initialize() for every unit first",
                            name.kind),
                {.unit = name.unit, .rank = name.rank});
  }
  IoRequest request = store_.read_request(tile.extent, tile.data);
  request.priority = static_cast<std::uint64_t>(priority);
  co_await transfer(request, tile.extent, store_.slot_of(tile.extent));
}

Task<> TileIo::store(TileBuffer tile) {
  const std::optional<ExtentStore::Write> write = store_.begin_write(tile.extent);
  STRATA_ASSERT(write.has_value(), "a tile is written while every slot of it is pinned");
  IoRequest request = store_.write_request(*write, tile.data);
  request.priority = static_cast<std::uint64_t>(IoPriority::write_back);
  try {
    co_await transfer(request, tile.extent, write->slot);
  } catch (...) {
    store_.abandon(*write);
    throw;
  }
  store_.commit(*write, tile.checksum);
}

Task<Bytes> TileIo::probe(ExtentId extent, IoOp op, std::byte* data) {
  IoRequest request = store_.read_request(extent, data);
  request.op = op;
  co_await transfer(request, extent, store_.slot_of(extent));
  co_return request.size;
}

// What is wrong may be on the disk or only on the way from it.
Task<> TileIo::read_again(TileBuffer tile) {
  co_await fetch(tile, IoPriority::gather);
  bool whole = false;
  const std::string entry = label("verify again", tile.extent);
  const JobCost cost{.checked = checked_bytes(std::span<const TileBuffer>(&tile, 1)),
                     .label = entry};
  co_await executor_.work(cost, [&] { whole = holds_what_was_written(tile); });
  if (!whole) throw_corrupt(tile.extent);
  if (!options_.log) co_return;
  const TileName name = options_.name(tile.extent);
  const ExtentStore::SlotIndex slot = store_.slot_of(tile.extent);
  options_.log(LogLevel::warning,
               fmt::format("{}: {} of unit {} at offset {} was wrong when read and right when read "
                           "again; check memory, cables and the disk",
                           store_.path_of(slot), name.kind, name.unit, store_.offset_of(slot)));
}

Error TileIo::error(ErrorCode code, std::string_view message, int errnum, ExtentId extent,
                    ExtentStore::SlotIndex slot) const {
  const TileName name = options_.name(extent);
  return {code, message,
          ErrorContext{.errnum = errnum,
                       .path = store_.path_of(slot),
                       .offset_bytes = store_.offset_of(slot),
                       .size = store_.transfer_size(extent),
                       .unit = name.unit,
                       .rank = name.rank}};
}

Error TileIo::describe(const Failure& failure) const {
  const bool reading = failure.op == IoOp::read;
  std::string text = fmt::format("{} {} {} the nvme tier failed", reading ? "reading" : "writing",
                                 options_.name(failure.extent).kind, reading ? "from" : "to");
  int errnum = 0;
  if (failure.result == Executor::kNoAnswer) {
    errnum = ETIMEDOUT;
    text += ": no answer within nvme.timeout_s";
  } else if (failure.result < 0) {
    errnum = static_cast<int>(-failure.result);
  } else {
    text += fmt::format(" after {} bytes (was the file truncated?)", failure.result);
  }
  const ErrorCode code = io_error_code(errnum);
  if (code == ErrorCode::no_space) text += " (free space on the device below the file system)";
  return error(code, text, errnum, failure.extent, failure.slot);
}

void TileIo::tell_retry(const Failure& failure) const {
  if (!options_.log) return;
  options_.log(LogLevel::warning, fmt::format("{}; trying again", describe(failure).what()));
}

void TileIo::throw_corrupt(ExtentId extent) const {
  throw error(ErrorCode::corrupt,
              fmt::format("{} on the nvme tier is not what was written (checksum, read twice); "
                          "check the disk (dmesg, smartctl)",
                          options_.name(extent).kind),
              0, extent, store_.slot_of(extent));
}

}  // namespace strata
