// One data file: created without following links, locked, preallocated, and set up for O_DIRECT
// where the file system allows it. Owned by the adapter that does the I/O; the lock lives as long
// as the descriptor.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "strata/block_io.hpp"

namespace strata::files {

struct DataFile {
  Descriptor descriptor;
  std::string path;
  Bytes size;  // preallocated
  IoAlignment alignment;
  bool direct = false;
};

// Takes a notice about a directory, e.g. that it goes through the page cache.
using Notice = std::function<void(const std::string& directory, std::string_view message)>;

// Opens or creates spec.path. Content of an earlier session up to spec.size is kept, the rest of
// the file is cut off. A file that this call created is removed again when the call throws.
// Throws Error: in_use, no_space, io (see BlockIo::open). Blocks.
DataFile open_data_file(const FileSpec& spec, bool want_direct, const Notice& notice);

}  // namespace strata::files
