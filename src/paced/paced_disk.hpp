// A BlockIo in memory that takes declared time: the disk on which performance is gated, because a
// real disk's rate swings tenfold within minutes. Requests are served in order of (priority,
// submission); each occupies the disk for bytes / rate, then completes after the request latency.
// Half-duplex disks serve reads and writes in one line, so that a mix takes R/Br + W/Bw; full-
// duplex ones have a line for each. A flush stops both lines for a time that grows with the bytes
// written since the last one.
//
// Time is real, and waiting costs no CPU; moving the bytes costs one memcpy on the disk's thread.
// The schedule of a line does not depend on when that thread wakes up: a request starts at the
// later of its submission and the end of the one before it.
//
// Ownership: as SimulatedDisk. Thread: as BlockIo.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/wake_event.hpp"
#include "files/io_tally.hpp"
#include "paced/file_store.hpp"
#include "strata/block_io.hpp"
#include "strata/clock.hpp"

namespace strata {

class PacedDisk final : public BlockIo {
 public:
  struct Options {
    double read_bytes_per_second = 2e9;
    double write_bytes_per_second = 1.5e9;
    bool half_duplex = true;
    double request_latency_seconds = 100e-6;
    double flush_seconds = 1e-3;
    double flush_seconds_per_byte = 1.1e-3 / (1 << 20);  // measured on a virtio disk
    IoAlignment alignment{.memory = Bytes{512}, .offset = Bytes{512}};
    std::shared_ptr<FileStore> store;  // null: a store of its own
  };

  explicit PacedDisk(Options options);
  ~PacedDisk() override;
  PacedDisk(const PacedDisk&) = delete;
  PacedDisk& operator=(const PacedDisk&) = delete;

  std::string_view name() const override { return "paced"; }
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

  const std::shared_ptr<FileStore>& store() const { return store_; }

 private:
  struct OpenFile {
    std::shared_ptr<StoredFile> stored;
    std::size_t in_flight = 0;
  };
  struct Queued {
    IoRequest request;
    std::uint64_t sequence = 0;
    std::int64_t submitted_ns = 0;
  };
  struct InService {
    IoRequest request;
    std::int64_t result = 0;
    std::int64_t done_ns = 0;
  };
  struct Line {
    std::vector<Queued> queue;  // heap, most urgent in front
    std::int64_t free_at_ns = 0;
  };

  static bool later(const Queued& a, const Queued& b);
  OpenFile& file_of(FileId file) const;
  Line& line_of(const IoRequest& request);
  void check(const IoRequest& request) const;
  void serve();
  Line* free_line(std::int64_t now_ns);
  std::optional<std::int64_t> next_event_ns() const;
  void wait_for_event(std::unique_lock<std::mutex>& lock);
  bool finish_due(std::int64_t now_ns);
  void start_next(Line& line, std::unique_lock<std::mutex>& lock);
  std::int64_t occupied_ns(const IoRequest& request) const;

  const Options options_;
  const std::shared_ptr<FileStore> store_;
  const SteadyClock clock_;
  WakeEvent results_ready_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<OpenFile>> files_;  // by FileId; null once closed
  std::array<Line, 2> lines_;                     // [0] all or reads, [1] writes and flushes
  std::vector<InService> in_service_;
  std::vector<IoResult> finished_;
  std::uint64_t next_sequence_ = 0;
  Bytes unflushed_;
  files::IoTally tally_;

  std::thread thread_;
};

}  // namespace strata
