// BlockIo by io_uring (io_uring(7)): one system call submits a batch, and no thread waits for it.
// Files are registered, and so is the memory of use_memory() where RLIMIT_MEMLOCK allows; otherwise
// each request pins its own pages, which costs CPU and no bandwidth (measured: 0.016 instead of
// 0.010 CPU s/GiB), and is told once.
//
// The ring serves one thread, the first that submits. Should another thread open, close or submit
// later, while nothing is in flight, a new ring is made for it.
//
// A flush covers the writes whose results were available before it was submitted; requests are
// not ordered otherwise than by (priority, order of submission) of their start.
//
// Thread: as BlockIo; counters() from any. The log sink is called from open() and from the first
// submit() after use_memory(). The destructor waits for the requests that the kernel has and drops
// those still queued.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "base/wake_event.hpp"
#include "files/io_tally.hpp"
#include "files/open_files.hpp"
#include "files/request_queue.hpp"
#include "files/transfer.hpp"
#include "strata/block_io.hpp"
#include "strata/clock.hpp"
#include "strata/log.hpp"

namespace strata {

namespace uring {
class Ring;
}

class UringBlockIo final : public BlockIo {
 public:
  struct Options {
    files::QueueDepth depth;
    bool direct = true;  // false: always through the page cache
    LogSink log;         // may be empty
  };

  // Throws Error(not_supported) with the reason where the kernel offers no io_uring.
  explicit UringBlockIo(Options options);
  ~UringBlockIo() override;
  UringBlockIo(const UringBlockIo&) = delete;
  UringBlockIo& operator=(const UringBlockIo&) = delete;

  std::string_view name() const override { return "io_uring"; }
  void prepare_directory(const std::string& root, const std::string& directory,
                         bool allow_tmpfs) override;
  FileId open(const FileSpec& spec) override;
  IoAlignment alignment(FileId file) const override { return files_[file].alignment; }
  bool direct(FileId file) const override { return files_[file].direct; }
  void close(FileId file, bool remove) override;
  void remove_directory(const std::string& root, const std::string& directory) override;
  void submit(std::span<const IoRequest> requests) override;
  std::size_t poll(std::span<IoResult> results) override;
  int descriptor() const override { return results_ready_.descriptor(); }
  void use_memory(std::span<std::byte> memory) override;
  bool uses_registered_memory() const override { return memory_is_registered_; }
  IoCounters counters() const override;

 private:
  // A request that the kernel has.
  struct Running {
    IoRequest request;
    files::Transfer transfer;
  };

  void start_requests();
  void make_ring();
  void drop_idle_ring();
  void reserve_descriptor();
  void fail_waiting(int errnum);
  void issue(std::uint32_t slot);
  void complete(std::uint32_t slot, std::int64_t answer);
  void deliver(const IoRequest& request, std::int64_t result);
  void reap();

  const Options options_;
  const SteadyClock clock_;
  files::OpenFiles files_;
  std::vector<FileId> open_ids_;
  std::span<std::byte> memory_;
  bool memory_is_registered_ = false;
  bool told_unregistered_ = false;

  files::RequestQueue queue_;
  std::vector<Running> running_;  // by slot
  std::vector<std::uint32_t> free_slots_;
  std::vector<IoResult> finished_;
  std::size_t next_finished_ = 0;  // of finished_, to be polled
  WakeEvent results_ready_;        // raised by the kernel, and by us for what is left over
  Descriptor for_next_ring_;
  std::unique_ptr<uring::Ring> ring_;

  mutable std::mutex tally_mutex_;
  files::IoTally tally_;  // guarded by tally_mutex_
};

}  // namespace strata
