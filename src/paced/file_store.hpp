// Files in memory, by path: what the disk doubles keep their bytes in. It outlives them, so that a
// second disk on the same store finds earlier content and locks, as a second process would.
//
// Ownership: shared by the disks; an open file belongs to the disk that opened it, which guards
// its bytes. Thread: the store's own functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "strata/block_io.hpp"

namespace strata {

// Zeroed memory that is backed lazily, by huge pages where the kernel has them.
class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  explicit ZeroedMemory(Bytes size);
  ZeroedMemory(ZeroedMemory&& other) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept;
  ~ZeroedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

class StoredFile {
 public:
  // `keep_previous`: remember what each byte was before its last write, for stale reads.
  StoredFile(std::string path, Bytes size, bool keep_previous);

  const std::string& path() const { return path_; }
  Bytes size() const { return Bytes{content_.bytes().size()}; }
  std::span<std::byte> bytes() const { return content_.bytes(); }
  bool keeps_previous() const { return keep_previous_; }

  // Copies from `offset_bytes` on; returns how many bytes there were before the end of the file.
  std::size_t read(std::uint64_t offset_bytes, std::span<std::byte> to) const;
  std::size_t read_previous(std::uint64_t offset_bytes, std::span<std::byte> to) const;
  // Pre: the range lies inside the file.
  void write(std::uint64_t offset_bytes, std::span<const std::byte> from);
  void resize(Bytes size);
  std::shared_ptr<StoredFile> clone() const;

 private:
  std::string path_;
  bool keep_previous_;
  ZeroedMemory content_;
  ZeroedMemory previous_;
};

class FileStore {
 public:
  struct Options {
    Bytes capacity{1ULL << 50};  // of all files together
    bool keep_previous = false;
  };

  FileStore() = default;
  explicit FileStore(Options options) : options_(options) {}

  void prepare_directory(const std::string& root, const std::string& directory);
  void remove_directory(const std::string& root, const std::string& directory);

  // Creates or reuses, locks and sizes a file. Throws Error as BlockIo::open does: in_use,
  // no_space with the bytes missing, io when the directory was not prepared.
  std::shared_ptr<StoredFile> open(const FileSpec& spec);
  void close(const StoredFile& file, bool remove);

  std::vector<std::string> paths() const;
  std::vector<std::string> directories() const;
  // For a test that looks at or damages a file. Pre: the file exists.
  std::shared_ptr<StoredFile> find(const std::string& path) const;
  // The same files, none of them open.
  std::shared_ptr<FileStore> clone() const;

 private:
  struct Entry {
    std::shared_ptr<StoredFile> file;
    bool locked = false;
  };

  bool is_empty(const std::string& directory) const;
  void check_room(const FileSpec& spec) const;

  Options options_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> files_;
  std::set<std::string> directories_;
};

}  // namespace strata
