// A BlockIo in memory whose completions are late, reordered and faulty by a seed. The same seed
// and the same calls give the same run (except for real time in Delivery::background). Each fault
// that happened is told by injected().
//
// It also checks its user: requests are aligned and inside the file, no memory is in two requests
// at once (from submit() until the result was polled), nothing is in flight at close().
//
// Ownership: shares its FileStore, which keeps content and locks beyond the disk's life. Destroying
// the disk drops what is in flight and unlocks its files, as the end of a process does.
// Thread: as BlockIo; the functions that BlockIo does not have may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
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
#include "support/fault_plan.hpp"

namespace strata::test {

class SimulatedDisk final : public BlockIo {
 public:
  enum class Delivery {
    on_poll,     // each poll() is one tick; the descriptor is readable while anything is in flight
    manual,      // requests complete in deliver() only
    background,  // a thread ticks every 20 us of real time
  };

  struct Options {
    std::uint64_t seed = 1;
    IoAlignment alignment{.memory = Bytes{512}, .offset = Bytes{512}};
    bool direct = true;
    Delivery delivery = Delivery::on_poll;
    std::uint32_t max_latency_ticks = 8;  // a request takes 1 .. max ticks, drawn by the seed
    std::uint32_t slow_ticks = 1000;      // what Fault::slow adds
    std::shared_ptr<FileStore> store;     // null: a store of its own, with previous content
  };

  explicit SimulatedDisk(Options options);
  SimulatedDisk() : SimulatedDisk(Options{}) {}
  ~SimulatedDisk() override;
  SimulatedDisk(const SimulatedDisk&) = delete;
  SimulatedDisk& operator=(const SimulatedDisk&) = delete;

  std::string_view name() const override { return "simulated"; }
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

  // See FaultPlan. A fault that cannot befall a request waits for one that it can befall.
  void fail(Fault fault, std::uint64_t k = 0);
  void set_probability(Fault fault, double probability);
  // The k-th open() or prepare_directory() from now throws the Error of this errno.
  void fail_open(int errnum, std::uint64_t k = 0);
  void fail_prepare_directory(int errnum, std::uint64_t k = 0);
  // One line for each fault that happened, in the order of happening.
  std::vector<std::string> injected() const;

  // Completes up to `count` requests, in the seeded order; returns how many.
  std::size_t deliver(std::size_t count);
  // Requests whose result was not polled yet.
  std::size_t in_flight() const;

  const std::shared_ptr<FileStore>& store() const { return store_; }
  // What a new process would find if this one were killed now: each write in flight landed whole,
  // in part or not at all, by the seed.
  std::shared_ptr<FileStore> store_if_killed_now();

 private:
  struct Op {
    IoRequest request;
    std::uint64_t sequence = 0;
    std::uint64_t due_tick = 0;
    std::uint64_t shuffle = 0;  // decides among equal due ticks
    std::optional<Fault> fault;
  };
  struct Finished {
    IoRequest request;
    IoResult result;
  };
  struct PlannedError {
    int errnum = 0;
    std::uint64_t remaining = 0;
  };

  StoredFile& file_of(FileId file) const;
  Bytes sector() const;
  void check(const IoRequest& request) const;
  void check_memory_is_free(const IoRequest& request) const;
  void enqueue(const IoRequest& request);
  void tick();
  void sort_pending();
  void finish_first();
  void throw_if_planned(std::vector<PlannedError>& planned, const std::string& what,
                        const std::string& path);
  void run_in_background();

  std::int64_t perform(const Op& op);
  std::int64_t perform_read(const Op& op);
  std::int64_t perform_write(const Op& op);
  Bytes drawn_prefix(Bytes size);
  std::uint64_t drawn_other_place(const IoRequest& request, Bytes file_size);
  void tell(const Op& op, std::string_view detail);

  const Options options_;
  const std::shared_ptr<FileStore> store_;
  const SteadyClock clock_;
  WakeEvent results_ready_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::condition_variable something_pending_;
  bool stopping_ = false;
  Draws draws_;
  FaultPlan faults_;
  std::vector<PlannedError> open_errors_;
  std::vector<PlannedError> prepare_errors_;
  std::vector<std::shared_ptr<StoredFile>> files_;  // by FileId; null once closed
  std::vector<Op> pending_;
  std::deque<Finished> finished_;
  std::uint64_t now_tick_ = 0;
  std::uint64_t next_sequence_ = 0;
  files::IoTally tally_;
  std::vector<std::string> injected_;

  std::thread background_;
};

}  // namespace strata::test
