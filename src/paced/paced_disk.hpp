// A BlockIo in memory that takes declared time (virtual/disk_model.hpp): the disk on which
// performance is gated, because a real disk's rate swings tenfold within minutes.
//
// Time is real, and waiting costs no CPU; moving the bytes costs one memcpy on the disk's thread.
// When a request is done does not depend on when that thread wakes up.
//
// Ownership: as SimulatedDisk. Thread: as BlockIo.
#pragma once

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
#include "virtual/disk_model.hpp"

namespace strata {

class PacedDisk final : public BlockIo {
 public:
  struct Options {
    DiskPace pace;
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
  struct InService {
    IoRequest request;
    std::int64_t result = 0;
    std::int64_t done_ns = 0;
  };
  OpenFile& file_of(FileId file) const;
  void check(const IoRequest& request) const;
  void serve();
  std::optional<std::int64_t> next_event_ns() const;
  void wait_for_event(std::unique_lock<std::mutex>& lock);
  bool finish_due(std::int64_t now_ns);
  void move(const DiskModel::Service& service, std::unique_lock<std::mutex>& lock);

  const Options options_;
  const std::shared_ptr<FileStore> store_;
  const SteadyClock clock_;
  WakeEvent results_ready_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::condition_variable changed_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<OpenFile>> files_;  // by FileId; null once closed
  DiskModel model_;
  std::vector<InService> in_service_;
  std::vector<IoResult> finished_;
  files::IoTally tally_;

  std::thread thread_;
};

}  // namespace strata
