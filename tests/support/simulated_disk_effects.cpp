// What a request of the simulated disk does to memory and to the stored file, faults included.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "support/simulated_disk.hpp"

namespace strata::test {
namespace {

std::span<std::byte> memory_of(const IoRequest& request) {
  return {request.data, request.size.value};
}

void flip_bit(std::span<std::byte> bytes, std::uint64_t bit) {
  bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
}

}  // namespace

// A disk moves whole sectors even where the page cache accepts single bytes.
Bytes SimulatedDisk::sector() const {
  return options_.alignment.offset > Bytes{1} ? options_.alignment.offset : Bytes{512};
}

void SimulatedDisk::tell(const Op& op, std::string_view detail) {
  injected_.push_back(fmt::format(
      "{}: {} #{} of {} at {}+{}: {}", name_of(*op.fault), name_of(op.request.op), op.sequence,
      file_of(op.request.file).path(), op.request.offset_bytes, op.request.size.value, detail));
}

// Whole sectors, fewer than `size` has.
Bytes SimulatedDisk::drawn_prefix(Bytes size) {
  const std::uint64_t sectors = round_up(size, sector()) / sector();
  return sectors == 0 ? Bytes{0} : sector() * draws_.below(sectors);
}

// Pre: the file has room for the request at another offset than its own.
std::uint64_t SimulatedDisk::drawn_other_place(const IoRequest& request, Bytes file_size) {
  const std::uint64_t step = sector().value;
  const std::uint64_t places = (file_size - request.size).value / step + 1;
  const std::uint64_t own = request.offset_bytes / step;
  const std::uint64_t other = (own + 1 + draws_.below(places - 1)) % places;
  return other * step;
}

std::int64_t SimulatedDisk::perform(const Op& op) {
  switch (op.request.op) {
    case IoOp::read: return perform_read(op);
    case IoOp::write: return perform_write(op);
    case IoOp::flush: break;
  }
  if (op.fault != Fault::io_error) return 0;
  tell(op, "-EIO");
  return -EIO;
}

std::int64_t SimulatedDisk::perform_read(const Op& op) {
  const StoredFile& file = file_of(op.request.file);
  const std::uint64_t offset = op.request.offset_bytes;
  const std::span<std::byte> memory = memory_of(op.request);
  const auto whole = [&](std::size_t moved) { return static_cast<std::int64_t>(moved); };
  if (!op.fault) return whole(file.read(offset, memory));
  switch (*op.fault) {
    case Fault::io_error: {
      const Bytes moved = drawn_prefix(op.request.size);
      tell(op, fmt::format("-EIO after {} bytes", moved.value));
      file.read(offset, memory.first(moved.value));
      return -EIO;
    }
    case Fault::short_transfer: {
      const Bytes moved = drawn_prefix(op.request.size);
      tell(op, fmt::format("{} bytes", moved.value));
      return whole(file.read(offset, memory.first(moved.value)));
    }
    case Fault::misdirected_read: {
      const std::uint64_t other = drawn_other_place(op.request, file.size());
      tell(op, fmt::format("data of offset {}", other));
      return whole(file.read(other, memory));
    }
    case Fault::stale_read:
      tell(op, "previous content");
      return whole(file.read_previous(offset, memory));
    case Fault::bit_flip_on_read: {
      const std::int64_t moved = whole(file.read(offset, memory));
      const std::uint64_t bit = draws_.below(op.request.size.value * 8);
      flip_bit(memory, bit);
      tell(op, fmt::format("bit {} in memory", bit));
      return moved;
    }
    default: return whole(file.read(offset, memory));
  }
}

std::int64_t SimulatedDisk::perform_write(const Op& op) {
  StoredFile& file = file_of(op.request.file);
  const std::uint64_t offset = op.request.offset_bytes;
  const std::span<const std::byte> memory = memory_of(op.request);
  const auto size = static_cast<std::int64_t>(memory.size());
  const auto land = [&](Bytes count) { file.write(offset, memory.first(count.value)); };
  if (!op.fault) {
    land(op.request.size);
    return size;
  }
  switch (*op.fault) {
    case Fault::io_error:
    case Fault::short_transfer:
    case Fault::torn_write: {
      const Bytes landed = drawn_prefix(op.request.size);
      tell(op, fmt::format("{} bytes landed", landed.value));
      land(landed);
      if (op.fault == Fault::io_error) return -EIO;
      return op.fault == Fault::torn_write ? size : static_cast<std::int64_t>(landed.value);
    }
    case Fault::no_space: tell(op, "-ENOSPC"); return -ENOSPC;
    case Fault::lost_write: tell(op, "nothing landed"); return size;
    case Fault::misdirected_write: {
      const std::uint64_t other = drawn_other_place(op.request, file.size());
      tell(op, fmt::format("landed at {}", other));
      file.write(other, memory);
      return size;
    }
    case Fault::bit_flip_at_rest: {
      land(op.request.size);
      const std::uint64_t bit = draws_.below(op.request.size.value * 8);
      flip_bit(file.bytes().subspan(offset, memory.size()), bit);
      tell(op, fmt::format("bit {} on the disk", bit));
      return size;
    }
    default: land(op.request.size); return size;
  }
}

std::shared_ptr<FileStore> SimulatedDisk::store_if_killed_now() {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<FileStore> found = store_->clone();
  sort_pending();
  for (const Op& op : pending_) {
    if (op.request.op != IoOp::write) continue;
    const std::uint64_t fate = draws_.below(3);
    if (fate == 0) continue;
    const Bytes landed = fate == 1 ? drawn_prefix(op.request.size) : op.request.size;
    found->find(file_of(op.request.file).path())
        ->write(op.request.offset_bytes, memory_of(op.request).first(landed.value));
  }
  return found;
}

}  // namespace strata::test
