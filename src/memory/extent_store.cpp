#include "memory/extent_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.hpp"
#include "base/rng.hpp"
#include "strata/error.hpp"

namespace strata {

ExtentStore::ExtentStore(BlockIo& io, ExtentStoreOptions options)
    : io_(io), options_(std::move(options)), file_sizes_(options_.directories.size()) {
  STRATA_ASSERT(options_.weights.empty() || options_.weights.size() == options_.directories.size(),
                "one weight for each directory");
}

ExtentStore::~ExtentStore() {
  try {
    close();
  } catch (const Error&) {
    // What could not be deleted stays; the next session of the run takes it over.
  }
}

std::string ExtentStore::directory(std::uint32_t index) const {
  return fmt::format("{}/{}/rank-{}", options_.directories[index], options_.run,
                     options_.rank.value);
}

double ExtentStore::weight(std::size_t file) const {
  return options_.weights.empty() ? 1.0 : options_.weights[file];
}

// The directory that has least of the stream for its weight. Streams start at different ones, so
// that small streams do not all end on the first.
std::uint32_t ExtentStore::next_file(std::uint32_t stream, Bytes size) {
  STRATA_ASSERT(!file_sizes_.empty(), "an extent without a directory");
  while (dealt_.size() <= stream) dealt_.emplace_back(file_sizes_.size(), 0.0);
  std::vector<double>& dealt = dealt_[stream];
  const std::size_t first = stream % dealt.size();
  std::size_t best = first;
  const auto after = [&](std::size_t file) {
    return dealt[file] + static_cast<double>(size.value) / weight(file);
  };
  for (std::size_t i = 1; i < dealt.size(); ++i) {
    const std::size_t file = (first + i) % dealt.size();
    if (after(file) < after(best)) best = file;
  }
  dealt[best] = after(best);
  return static_cast<std::uint32_t>(best);
}

ExtentStore::SlotIndex ExtentStore::add_slot(Bytes size, std::uint32_t stream) {
  const std::uint32_t file = next_file(stream, size);
  slots_.push_back({file, file_sizes_[file].value, 0});
  file_sizes_[file] += size;
  return static_cast<SlotIndex>(slots_.size() - 1);
}

ExtentId ExtentStore::add(Bytes size, std::uint32_t stream) {
  STRATA_ASSERT(!is_open_, "extents are fixed once the store is open");
  const Bytes rounded = round_up(size, kExtentAlign);
  const SlotIndex slot = add_slot(rounded, stream);
  slots_[slot].holders = 1;
  ++classes_[rounded].extents;
  extents_.push_back({.size = size, .slot = slot});
  return ExtentId{static_cast<std::uint32_t>(extents_.size() - 1)};
}

void ExtentStore::add_spares(std::uint32_t count) {
  STRATA_ASSERT(!is_open_, "extents are fixed once the store is open");
  const auto stream = static_cast<std::uint32_t>(dealt_.size());
  for (auto& [size, size_class] : classes_) {
    const std::uint32_t spares = std::min(count, size_class.extents);
    for (std::uint32_t i = 0; i < spares; ++i) size_class.spares.push_back(add_slot(size, stream));
  }
}

Bytes ExtentStore::allocated() const {
  Bytes total;
  for (const Bytes size : file_sizes_) total += size;
  return total;
}

void ExtentStore::assume_written() {
  for (ExtentState& extent : extents_) extent.version = std::max<std::uint64_t>(extent.version, 1);
}

void ExtentStore::open() {
  is_open_ = true;
  files_.resize(file_sizes_.size());
  try {
    for (std::uint32_t i = 0; i < file_sizes_.size(); ++i) {
      if (file_sizes_[i] == Bytes{}) continue;
      io_.prepare_directory(options_.directories[i], directory(i), options_.allow_tmpfs);
      files_[i] = io_.open({file_path(i), file_sizes_[i]});
      const IoAlignment alignment = io_.alignment(*files_[i]);
      if (std::max(alignment.offset, alignment.memory) > kExtentAlign) {
        throw Error(
            ErrorCode::not_supported,
            fmt::format("the disk asks for an alignment of {} bytes, at most {} are "
                        "supported: choose another directory",
                        std::max(alignment.offset, alignment.memory).value, kExtentAlign.value),
            {.path = directory(i)});
      }
    }
  } catch (...) {
    const std::exception_ptr first = std::current_exception();
    try {
      close();
    } catch (const Error&) {
      // The first cause counts.
    }
    std::rethrow_exception(first);
  }
}

void ExtentStore::close() {
  std::exception_ptr first;
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    if (file_sizes_[i] == Bytes{}) continue;
    try {
      close_file(i);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
    // Also where open() failed after it had made the directory.
    io_.remove_directory(options_.directories[i], directory(i));
  }
  files_.clear();
  if (first) std::rethrow_exception(first);
}

void ExtentStore::close_file(std::uint32_t index) {
  const std::optional<FileId> file = std::exchange(files_[index], std::nullopt);
  if (file) io_.close(*file, true);
}

bool ExtentStore::direct() const {
  return std::ranges::all_of(
      files_, [this](const std::optional<FileId>& file) { return !file || io_.direct(*file); });
}

IoRequest ExtentStore::request(IoOp op, SlotIndex slot, Bytes size, std::byte* data) const {
  const Slot& place = slots_[slot];
  return {.op = op,
          .file = files_[place.file].value(),
          .offset_bytes = place.offset_bytes,
          .data = data,
          .size = round_up(size, kExtentAlign)};
}

IoRequest ExtentStore::read_request(ExtentId extent, std::byte* data) const {
  const ExtentState& state = extents_[extent.value];
  return request(IoOp::read, state.slot, state.size, data);
}

IoRequest ExtentStore::read_request(const Pin& pin, std::byte* data) const {
  return request(IoOp::read, pin.slot, size(pin.extent), data);
}

IoRequest ExtentStore::write_request(const Write& write, std::byte* data) const {
  return request(IoOp::write, write.slot, size(write.extent), data);
}

std::optional<ExtentStore::Write> ExtentStore::begin_write(ExtentId extent) {
  ExtentState& state = extents_[extent.value];
  STRATA_ASSERT(!state.being_written, "two writes of one extent");
  SlotIndex slot = state.slot;
  std::vector<SlotIndex>& spares = classes_.find(transfer_size(extent))->second.spares;
  if (!spares.empty()) {
    slot = spares.back();
    spares.pop_back();
  } else if (slots_[slot].holders > 1) {
    return std::nullopt;
  }
  ++slots_[slot].holders;
  state.being_written = slot;
  return Write{extent, slot, state.version + 1};
}

void ExtentStore::commit(const Write& write, std::uint64_t checksum) {
  ExtentState& state = extents_[write.extent.value];
  STRATA_ASSERT(state.being_written && write.version == state.version + 1,
                "a commit without its write");
  // The write's hold on its slot becomes the extent's.
  let_go(state.slot, state.size);
  state = {.size = state.size, .slot = write.slot, .version = write.version, .checksum = checksum};
}

void ExtentStore::abandon(const Write& write) {
  ExtentState& state = extents_[write.extent.value];
  STRATA_ASSERT(state.being_written, "an abandoned write that never began");
  state.being_written.reset();
  let_go(write.slot, state.size);
}

void ExtentStore::let_go(SlotIndex slot, Bytes size) {
  STRATA_ASSERT(slots_[slot].holders > 0, "a slot that nobody holds");
  if (--slots_[slot].holders > 0) return;
  classes_.find(round_up(size, kExtentAlign))->second.spares.push_back(slot);
}

ExtentStore::Pin ExtentStore::pin(ExtentId extent) {
  const ExtentState& state = extents_[extent.value];
  STRATA_ASSERT(state.being_written != state.slot,
                "a version is pinned while it is being overwritten");
  ++slots_[state.slot].holders;
  return {extent, state.slot, state.version, state.checksum};
}

void ExtentStore::unpin(const Pin& pin) { let_go(pin.slot, size(pin.extent)); }

std::uint64_t ExtentStore::seed_of(ExtentId extent, std::uint64_t version) const {
  return rng::at(rng::at(options_.rank.value, extent.value), version);
}

}  // namespace strata
