#include "support/simulated_disk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "strata/error.hpp"

namespace strata::test {
namespace {

constexpr std::chrono::microseconds kTickPeriod{20};

std::shared_ptr<FileStore> store_or_new(const std::shared_ptr<FileStore>& store) {
  if (store != nullptr) return store;
  return std::make_shared<FileStore>(FileStore::Options{.keep_previous = true});
}

bool overlap(const IoRequest& a, const IoRequest& b) {
  if (a.size == Bytes{0} || b.size == Bytes{0}) return false;
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin < b_begin + b.size.value && b_begin < a_begin + a.size.value;
}

}  // namespace

SimulatedDisk::SimulatedDisk(Options options)
    : options_(std::move(options)),
      store_(store_or_new(options_.store)),
      draws_(rng::at(options_.seed, 0)),
      faults_(rng::at(options_.seed, 1)) {
  STRATA_ASSERT(options_.max_latency_ticks > 0, "a request takes at least one tick");
  if (options_.delivery == Delivery::background) {
    background_ = std::thread([this] { run_in_background(); });
  }
}

SimulatedDisk::~SimulatedDisk() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  something_pending_.notify_all();
  if (background_.joinable()) background_.join();
  for (const auto& file : files_) {
    if (file != nullptr) store_->close(*file, false);
  }
}

void SimulatedDisk::throw_if_planned(std::vector<PlannedError>& planned, const std::string& what,
                                     const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto due = std::find_if(planned.begin(), planned.end(),
                                [](const PlannedError& error) { return error.remaining == 0; });
  for (PlannedError& error : planned) {
    if (error.remaining > 0) --error.remaining;
  }
  if (due == planned.end()) return;
  const int errnum = due->errnum;
  planned.erase(due);
  injected_.push_back(fmt::format("{} of {}: errno {}", what, path, errnum));
  throw Error(io_error_code(errnum), fmt::format("{} failed on the simulated disk", what),
              {.errnum = errnum, .path = path});
}

void SimulatedDisk::prepare_directory(const std::string& root, const std::string& directory,
                                      bool /*allow_tmpfs*/) {
  throw_if_planned(prepare_errors_, "prepare_directory", directory);
  store_->prepare_directory(root, directory);
}

void SimulatedDisk::remove_directory(const std::string& root, const std::string& directory) {
  store_->remove_directory(root, directory);
}

FileId SimulatedDisk::open(const FileSpec& spec) {
  throw_if_planned(open_errors_, "open", spec.path);
  const FileSpec rounded{spec.path, round_up(spec.size, options_.alignment.offset)};
  auto file = store_->open(rounded);
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(file));
  return FileId{static_cast<std::uint32_t>(files_.size() - 1)};
}

StoredFile& SimulatedDisk::file_of(FileId file) const {
  STRATA_ASSERT(file.value < files_.size() && files_[file.value] != nullptr,
                fmt::format("file {} is not open", file.value));
  return *files_[file.value];
}

IoAlignment SimulatedDisk::alignment(FileId file) const {
  const std::lock_guard lock(mutex_);
  file_of(file);
  return options_.alignment;
}

bool SimulatedDisk::direct(FileId file) const {
  const std::lock_guard lock(mutex_);
  file_of(file);
  return options_.direct;
}

void SimulatedDisk::close(FileId file, bool remove) {
  const std::lock_guard lock(mutex_);
  const StoredFile& closing = file_of(file);
  for (const Op& op : pending_) {
    STRATA_ASSERT(op.request.file != file,
                  fmt::format("close of {} with {} #{} in flight", closing.path(),
                              name_of(op.request.op), op.sequence));
  }
  for (const Finished& finished : finished_) {
    STRATA_ASSERT(finished.request.file != file,
                  fmt::format("close of {} with a result that was not polled", closing.path()));
  }
  store_->close(closing, remove);
  files_[file.value] = nullptr;
}

void SimulatedDisk::check(const IoRequest& request) const {
  const StoredFile& file = file_of(request.file);
  if (request.op == IoOp::flush) {
    STRATA_ASSERT(request.size == Bytes{0}, "a flush has no bytes");
    return;
  }
  const IoAlignment& alignment = options_.alignment;
  const auto address = reinterpret_cast<std::uintptr_t>(request.data);
  STRATA_ASSERT(request.offset_bytes % alignment.offset.value == 0 &&
                    request.size.value % alignment.offset.value == 0 &&
                    address % alignment.memory.value == 0,
                fmt::format("misaligned request: offset {}, {} bytes, memory {:#x}",
                            request.offset_bytes, request.size.value, address));
  STRATA_ASSERT(request.data != nullptr || request.size == Bytes{0}, "a request without memory");
  STRATA_ASSERT(
      request.op == IoOp::read || request.offset_bytes + request.size.value <= file.size().value,
      fmt::format("write of {} bytes at {} would grow {} beyond {} bytes", request.size.value,
                  request.offset_bytes, file.path(), file.size().value));
  check_memory_is_free(request);
}

void SimulatedDisk::check_memory_is_free(const IoRequest& request) const {
  for (const Op& op : pending_) {
    STRATA_ASSERT(!overlap(op.request, request),
                  fmt::format("memory of {} #{} is submitted again while in flight",
                              name_of(op.request.op), op.sequence));
  }
  for (const Finished& finished : finished_) {
    STRATA_ASSERT(!overlap(finished.request, request),
                  "memory is submitted again before its result was polled");
  }
}

void SimulatedDisk::enqueue(const IoRequest& request) {
  check(request);
  Op op{.request = request,
        .sequence = next_sequence_++,
        .due_tick = now_tick_ + 1 + draws_.below(options_.max_latency_ticks),
        .shuffle = draws_.below(1ULL << 32),
        .fault = faults_.next(request, file_of(request.file).size(), sector())};
  if (op.fault == Fault::slow) {
    op.due_tick += options_.slow_ticks;
    tell(op, fmt::format("{} ticks more", options_.slow_ticks));
  }
  pending_.push_back(op);
}

void SimulatedDisk::submit(std::span<const IoRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    for (const IoRequest& request : requests) enqueue(request);
    tally_.submitted(requests.size(), clock_.now_ns());
  }
  something_pending_.notify_all();
  if (options_.delivery == Delivery::on_poll && !requests.empty()) results_ready_.raise();
}

void SimulatedDisk::sort_pending() {
  std::sort(pending_.begin(), pending_.end(), [](const Op& a, const Op& b) {
    return std::tuple(a.due_tick, a.shuffle, a.sequence) <
           std::tuple(b.due_tick, b.shuffle, b.sequence);
  });
}

void SimulatedDisk::finish_first() {
  const Op op = pending_.front();
  pending_.erase(pending_.begin());
  const std::int64_t result = perform(op);
  tally_.completed(op.request.op, result, clock_.now_ns());
  finished_.push_back({op.request, {.tag = op.request.tag, .result = result}});
}

void SimulatedDisk::tick() {
  ++now_tick_;
  sort_pending();
  while (!pending_.empty() && pending_.front().due_tick <= now_tick_) finish_first();
}

std::size_t SimulatedDisk::deliver(std::size_t count) {
  std::size_t delivered = 0;
  {
    const std::lock_guard lock(mutex_);
    sort_pending();
    for (; delivered < count && !pending_.empty(); ++delivered) finish_first();
  }
  if (delivered > 0) results_ready_.raise();
  return delivered;
}

std::size_t SimulatedDisk::poll(std::span<IoResult> results) {
  std::size_t count = 0;
  const std::lock_guard lock(mutex_);
  if (options_.delivery == Delivery::on_poll) tick();
  count = std::min(results.size(), finished_.size());
  for (std::size_t i = 0; i < count; ++i) {
    results[i] = finished_.front().result;
    finished_.pop_front();
  }
  const bool ticks_by_poll = options_.delivery == Delivery::on_poll && !pending_.empty();
  if (finished_.empty() && !ticks_by_poll) results_ready_.clear();
  return count;
}

void SimulatedDisk::run_in_background() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    something_pending_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
    something_pending_.wait_for(lock, kTickPeriod, [this] { return stopping_; });
    if (stopping_) return;
    const std::size_t before = pending_.size();
    tick();
    if (pending_.size() != before) results_ready_.raise();
  }
}

IoCounters SimulatedDisk::counters() const {
  const std::lock_guard lock(mutex_);
  return tally_.counters(clock_.now_ns());
}

void SimulatedDisk::fail(Fault fault, std::uint64_t k) {
  const std::lock_guard lock(mutex_);
  faults_.fail(fault, k);
}

void SimulatedDisk::set_probability(Fault fault, double probability) {
  const std::lock_guard lock(mutex_);
  faults_.set_probability(fault, probability);
}

void SimulatedDisk::fail_open(int errnum, std::uint64_t k) {
  const std::lock_guard lock(mutex_);
  open_errors_.push_back({errnum, k});
}

void SimulatedDisk::fail_prepare_directory(int errnum, std::uint64_t k) {
  const std::lock_guard lock(mutex_);
  prepare_errors_.push_back({errnum, k});
}

std::vector<std::string> SimulatedDisk::injected() const {
  const std::lock_guard lock(mutex_);
  return injected_;
}

std::size_t SimulatedDisk::in_flight() const {
  const std::lock_guard lock(mutex_);
  return pending_.size() + finished_.size();
}

}  // namespace strata::test
