// The open data files of an adapter, by FileId: what opening, checking requests and closing are to
// every adapter that works on files of the kernel.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/data_file.hpp"
#include "strata/block_io.hpp"
#include "strata/log.hpp"

namespace strata::files {

class OpenFiles {
 public:
  // `direct` false: always through the page cache. `log` may be empty.
  OpenFiles(bool direct, LogSink log) : direct_(direct), log_(std::move(log)) {}

  // The blocking part of BlockIo::open(), which needs no FileId yet.
  DataFile open(const FileSpec& spec);
  FileId add(DataFile file);
  // Pre (asserted): no request on it is in flight. See BlockIo::close.
  void close(FileId file, bool remove);

  // Pre (asserted): the file is open.
  const DataFile& operator[](FileId file) const { return entry(file).data; }
  // Asserts that the request keeps the contract of BlockIo, and counts it as in flight.
  void start(const IoRequest& request);
  void finish(FileId file) { --entry(file).in_flight; }

 private:
  struct Entry {
    DataFile data;
    std::size_t in_flight = 0;
  };

  Entry& entry(FileId file) const;
  void tell_once(const std::string& directory, std::string_view message);

  const bool direct_;
  const LogSink log_;
  std::set<std::pair<std::string, std::string>> told_;  // (directory, message)
  std::vector<std::unique_ptr<Entry>> entries_;         // by FileId; null once closed
};

}  // namespace strata::files
