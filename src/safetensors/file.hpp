// Whole transfers of one file, checked, with errors that name it. Blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/descriptor.hpp"

namespace strata::safetensors {

// Which content a file has: changes when it is written to or replaced.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0, size_bytes = 0;
  std::int64_t modified_s = 0, modified_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

struct OpenedFile {
  Descriptor descriptor;
  FileIdentity identity;
};

// Follows links. Throws Error(io): missing, unreadable, or no regular file.
OpenedFile open_to_read(const std::string& path);

// Throws Error: io, or corrupt when the file ends before. Pre: the range ends below 2^63.
void read_exactly(int fd, std::span<std::byte> to, std::uint64_t offset_bytes,
                  const std::string& path);

// The whole file. Throws Error: io, corrupt when it is larger than `most_bytes`.
std::string read_text(const std::string& path, std::uint64_t most_bytes);

// Throws Error: no_space, io.
void write_exactly(int fd, std::span<const std::byte> from, std::uint64_t offset_bytes,
                   const std::string& path);

// Returns when what this descriptor's file holds is on the disk. Throws Error: no_space, io.
void sync_file(int fd, const std::string& path);

}  // namespace strata::safetensors
