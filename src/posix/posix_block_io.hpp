// BlockIo by blocking pread and pwrite on a few threads: the adapter that works wherever POSIX
// does, and the reference for the faster ones. Uses O_DIRECT where the file system allows it, and
// otherwise the page cache, which is told once per directory.
//
// A flush covers the writes whose results were available before it was submitted; requests are
// not ordered otherwise than by (priority, order of submission) of their start.
//
// Thread: as BlockIo; the log sink is called from open() only. The destructor waits for the
// requests that threads are working on and drops those still queued.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/wake_event.hpp"
#include "files/io_tally.hpp"
#include "files/open_files.hpp"
#include "files/request_queue.hpp"
#include "strata/block_io.hpp"
#include "strata/clock.hpp"
#include "strata/log.hpp"

namespace strata {

class PosixBlockIo final : public BlockIo {
 public:
  struct Options {
    files::QueueDepth depth;  // a thread for each request that runs
    bool direct = true;       // false: always through the page cache
    LogSink log;              // may be empty
  };

  // Throws Error io when the threads cannot be started.
  explicit PosixBlockIo(Options options);
  ~PosixBlockIo() override;
  PosixBlockIo(const PosixBlockIo&) = delete;
  PosixBlockIo& operator=(const PosixBlockIo&) = delete;

  std::string_view name() const override { return "posix"; }
  void prepare_directory(const std::string& root, const std::string& directory,
                         bool allow_tmpfs) override;
  FileId open(const FileSpec& spec) override;
  IoAlignment alignment(FileId file) const override;
  bool direct(FileId file) const override;
  void close(FileId file, bool remove) override;
  void remove_directory(const std::string& root, const std::string& directory) override;
  void submit(std::span<const IoRequest> requests) override;
  std::size_t poll(std::span<IoResult> results) override;
  int descriptor() const override { return results_ready_.descriptor(); }
  IoCounters counters() const override;

 private:
  void start_threads();
  void stop_threads();
  void work();

  const Options options_;
  const SteadyClock clock_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::condition_variable work_available_;
  bool stopping_ = false;
  files::OpenFiles files_;
  files::RequestQueue queue_;
  std::vector<IoResult> finished_;
  files::IoTally tally_;
  WakeEvent results_ready_;  // raised while finished_ holds any

  std::vector<std::thread> threads_;
};

}  // namespace strata
