#include "paced/file_store.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata {
namespace {

std::string parent_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::size_t copy_out(std::span<const std::byte> content, std::uint64_t offset_bytes,
                     std::span<std::byte> to) {
  if (offset_bytes >= content.size()) return 0;
  const std::size_t count = std::min(to.size(), content.size() - offset_bytes);
  if (count > 0) std::memcpy(to.data(), content.data() + offset_bytes, count);
  return count;
}

}  // namespace

ZeroedMemory::ZeroedMemory(Bytes size) {
  if (size == Bytes{0}) return;
  void* memory =
      ::mmap(nullptr, size.value, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  STRATA_ASSERT(memory != MAP_FAILED, fmt::format("no memory for {} bytes", size.value));
  // Advice only: without huge pages the bytes are the same.
  (void)::madvise(memory, size.value, MADV_HUGEPAGE);
  bytes_ = {static_cast<std::byte*>(memory), size.value};
}

ZeroedMemory::ZeroedMemory(ZeroedMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

ZeroedMemory& ZeroedMemory::operator=(ZeroedMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

ZeroedMemory::~ZeroedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

StoredFile::StoredFile(std::string path, Bytes size, bool keep_previous)
    : path_(std::move(path)),
      keep_previous_(keep_previous),
      content_(size),
      previous_(keep_previous ? size : Bytes{0}) {}

std::size_t StoredFile::read(std::uint64_t offset_bytes, std::span<std::byte> to) const {
  return copy_out(content_.bytes(), offset_bytes, to);
}

std::size_t StoredFile::read_previous(std::uint64_t offset_bytes, std::span<std::byte> to) const {
  STRATA_ASSERT(keep_previous_, "this store keeps no previous content");
  return copy_out(previous_.bytes(), offset_bytes, to);
}

void StoredFile::write(std::uint64_t offset_bytes, std::span<const std::byte> from) {
  STRATA_ASSERT(offset_bytes + from.size() <= size().value,
                fmt::format("write of {} bytes at {} would grow {} beyond {} bytes", from.size(),
                            offset_bytes, path_, size().value));
  if (from.empty()) return;
  std::byte* const to = content_.bytes().data() + offset_bytes;
  if (keep_previous_) std::memcpy(previous_.bytes().data() + offset_bytes, to, from.size());
  std::memcpy(to, from.data(), from.size());
}

void StoredFile::resize(Bytes size) {
  if (size == this->size()) return;
  for (ZeroedMemory* memory : {&content_, &previous_}) {
    if (memory == &previous_ && !keep_previous_) continue;
    ZeroedMemory resized(size);
    copy_out(memory->bytes(), 0, resized.bytes());
    *memory = std::move(resized);
  }
}

std::shared_ptr<StoredFile> StoredFile::clone() const {
  auto copy = std::make_shared<StoredFile>(path_, size(), keep_previous_);
  copy_out(content_.bytes(), 0, copy->content_.bytes());
  copy_out(previous_.bytes(), 0, copy->previous_.bytes());
  return copy;
}

void FileStore::prepare_directory(const std::string& root, const std::string& directory) {
  const std::lock_guard lock(mutex_);
  const std::string top = normal(root);
  for (std::string name = normal(directory); name.size() >= top.size(); name = parent_of(name)) {
    directories_.insert(name);
    if (name == top) return;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is not below the nvme directory {}", directory, root));
}

bool FileStore::is_empty(const std::string& directory) const {
  const bool has_file = std::any_of(files_.begin(), files_.end(), [&](const auto& entry) {
    return parent_of(entry.first) == directory;
  });
  const bool has_directory =
      std::any_of(directories_.begin(), directories_.end(),
                  [&](const std::string& name) { return parent_of(name) == directory; });
  return !has_file && !has_directory;
}

void FileStore::remove_directory(const std::string& root, const std::string& directory) {
  const std::lock_guard lock(mutex_);
  const std::string top = normal(root);
  std::string name = normal(directory);
  while (name.size() > top.size() && is_empty(name)) {
    directories_.erase(name);
    name = parent_of(name);
  }
}

void FileStore::check_room(const FileSpec& spec) const {
  Bytes needed = spec.size;
  for (const auto& [path, entry] : files_) {
    if (path != spec.path) needed += entry.file->size();
  }
  if (needed <= options_.capacity) return;
  const Bytes missing = needed - options_.capacity;
  throw Error(ErrorCode::no_space,
              fmt::format("the simulated disk is too full: {} bytes needed, {} missing",
                          spec.size.value, missing.value),
              {.errnum = ENOSPC, .path = spec.path, .size = missing});
}

std::shared_ptr<StoredFile> FileStore::open(const FileSpec& spec) {
  const std::lock_guard lock(mutex_);
  if (!directories_.contains(normal(parent_of(spec.path)))) {
    throw Error(ErrorCode::io, "cannot open the data file", {.errnum = ENOENT, .path = spec.path});
  }
  const auto found = files_.find(spec.path);
  if (found != files_.end() && found->second.locked) {
    throw Error(ErrorCode::in_use, "another disk holds the data file", {.path = spec.path});
  }
  check_room(spec);
  Entry& entry = files_[spec.path];
  if (entry.file == nullptr) {
    entry.file = std::make_shared<StoredFile>(spec.path, spec.size, options_.keep_previous);
  } else {
    entry.file->resize(spec.size);
  }
  entry.locked = true;
  return entry.file;
}

void FileStore::close(const StoredFile& file, bool remove) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(file.path());
  STRATA_ASSERT(found != files_.end() && found->second.locked,
                fmt::format("{} is not open", file.path()));
  found->second.locked = false;
  if (remove) files_.erase(found);
}

std::vector<std::string> FileStore::paths() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, entry] : files_) paths.push_back(path);
  return paths;
}

std::vector<std::string> FileStore::directories() const {
  const std::lock_guard lock(mutex_);
  return {directories_.begin(), directories_.end()};
}

std::shared_ptr<StoredFile> FileStore::find(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  STRATA_ASSERT(found != files_.end(), fmt::format("no file {} in the store", path));
  return found->second.file;
}

std::shared_ptr<FileStore> FileStore::clone() const {
  const std::lock_guard lock(mutex_);
  auto copy = std::make_shared<FileStore>(options_);
  for (const auto& [path, entry] : files_) copy->files_[path] = {entry.file->clone(), false};
  copy->directories_ = directories_;
  return copy;
}

}  // namespace strata
