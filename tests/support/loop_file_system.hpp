// Directories and small file systems of real kernels for tests, removed again however a test ends.
#pragma once

#include <memory>
#include <string>

#include "strata/types.hpp"

namespace strata::test {

// A fresh directory, removed with all that is in it.
class ScratchDirectory {
 public:
  // Below `parent`, which must exist.
  explicit ScratchDirectory(const std::string& parent);
  // Below TMPDIR or /tmp when that is a disk, otherwise below the current directory.
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// An ext4 file system in a file, mounted by a loop device.
class LoopFileSystem {
 public:
  struct Options {
    Bytes size{16ULL << 20};
    Bytes sector{512};
    bool read_only = false;
    std::string parent = {};  // where the image lies, which need not have room for all of it
  };

  // Null, with the reason in `why_not`, where this user or machine may not mount.
  static std::unique_ptr<LoopFileSystem> mount(const Options& options, std::string& why_not);
  ~LoopFileSystem();
  LoopFileSystem(const LoopFileSystem&) = delete;
  LoopFileSystem& operator=(const LoopFileSystem&) = delete;

  // Where it is mounted.
  std::string path() const { return scratch_.path() + "/mount"; }

 private:
  explicit LoopFileSystem(const std::string& parent);
  bool set_up(const Options& options, std::string& why_not);

  ScratchDirectory scratch_;
  std::string loop_device_;
  bool mounted_ = false;
};

}  // namespace strata::test
