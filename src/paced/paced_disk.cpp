#include "paced/paced_disk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/check.hpp"

namespace strata {
namespace {

std::int64_t move_bytes(StoredFile& file, const IoRequest& request) {
  const std::span<std::byte> memory(request.data, request.size.value);
  if (request.op == IoOp::read) {
    return static_cast<std::int64_t>(file.read(request.offset_bytes, memory));
  }
  if (request.op == IoOp::write) file.write(request.offset_bytes, memory);
  return static_cast<std::int64_t>(request.size.value);
}

}  // namespace

PacedDisk::PacedDisk(Options options)
    : options_(std::move(options)),
      store_(options_.store != nullptr ? options_.store : std::make_shared<FileStore>()),
      model_(options_.pace) {
  thread_ = std::thread([this] { serve(); });
}

PacedDisk::~PacedDisk() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const auto& file : files_) {
    if (file != nullptr) store_->close(*file->stored, false);
  }
}

void PacedDisk::prepare_directory(const std::string& root, const std::string& directory,
                                  bool /*allow_tmpfs*/) {
  store_->prepare_directory(root, directory);
}

void PacedDisk::remove_directory(const std::string& root, const std::string& directory) {
  store_->remove_directory(root, directory);
}

FileId PacedDisk::open(const FileSpec& spec) {
  auto file = std::make_unique<OpenFile>();
  file->stored = store_->open({spec.path, round_up(spec.size, options_.alignment.offset)});
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(file));
  return FileId{static_cast<std::uint32_t>(files_.size() - 1)};
}

PacedDisk::OpenFile& PacedDisk::file_of(FileId file) const {
  STRATA_ASSERT(file.value < files_.size() && files_[file.value] != nullptr,
                fmt::format("file {} is not open", file.value));
  return *files_[file.value];
}

IoAlignment PacedDisk::alignment(FileId file) const {
  const std::lock_guard lock(mutex_);
  file_of(file);
  return options_.alignment;
}

bool PacedDisk::direct(FileId file) const {
  const std::lock_guard lock(mutex_);
  file_of(file);
  return true;
}

void PacedDisk::close(FileId file, bool remove) {
  const std::lock_guard lock(mutex_);
  const OpenFile& closing = file_of(file);
  STRATA_ASSERT(closing.in_flight == 0, fmt::format("close of {} with {} requests in flight",
                                                    closing.stored->path(), closing.in_flight));
  store_->close(*closing.stored, remove);
  files_[file.value] = nullptr;
}

void PacedDisk::check(const IoRequest& request) const {
  const StoredFile& file = *file_of(request.file).stored;
  const IoAlignment& alignment = options_.alignment;
  STRATA_ASSERT(request.offset_bytes % alignment.offset.value == 0 &&
                    request.size.value % alignment.offset.value == 0 &&
                    reinterpret_cast<std::uintptr_t>(request.data) % alignment.memory.value == 0,
                fmt::format("misaligned request: offset {}, {} bytes", request.offset_bytes,
                            request.size.value));
  STRATA_ASSERT(
      request.op != IoOp::write || request.offset_bytes + request.size.value <= file.size().value,
      fmt::format("write of {} bytes at {} would grow {} beyond {} bytes", request.size.value,
                  request.offset_bytes, file.path(), file.size().value));
}

void PacedDisk::submit(std::span<const IoRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    const std::int64_t now_ns = clock_.now_ns();
    for (const IoRequest& request : requests) {
      check(request);
      ++file_of(request.file).in_flight;
      model_.submit(request, now_ns);
    }
    tally_.submitted(requests.size(), now_ns);
  }
  changed_.notify_all();
}

// Moves the bytes of a request in service while its time runs, with the lock released.
void PacedDisk::move(const DiskModel::Service& service, std::unique_lock<std::mutex>& lock) {
  StoredFile& file = *file_of(service.request.file).stored;
  lock.unlock();
  const std::int64_t result = move_bytes(file, service.request);
  lock.lock();
  in_service_.push_back({service.request, result, service.done_ns});
}

// Makes the results available whose time has come, in order of their times.
bool PacedDisk::finish_due(std::int64_t now_ns) {
  std::sort(in_service_.begin(), in_service_.end(),
            [](const InService& a, const InService& b) { return a.done_ns < b.done_ns; });
  std::size_t due = 0;
  for (; due < in_service_.size() && in_service_[due].done_ns <= now_ns; ++due) {
    const InService& done = in_service_[due];
    --file_of(done.request.file).in_flight;
    tally_.completed(done.request.op, done.result, now_ns);
    finished_.push_back({.tag = done.request.tag, .result = done.result});
  }
  in_service_.erase(in_service_.begin(), in_service_.begin() + static_cast<std::ptrdiff_t>(due));
  return due > 0;
}

std::optional<std::int64_t> PacedDisk::next_event_ns() const {
  std::optional<std::int64_t> next = model_.next_start_ns();
  for (const InService& one : in_service_) {
    next = std::min(next.value_or(one.done_ns), one.done_ns);
  }
  return next;
}

void PacedDisk::wait_for_event(std::unique_lock<std::mutex>& lock) {
  const std::optional<std::int64_t> next = next_event_ns();
  if (!next) {
    changed_.wait(lock);
    return;
  }
  const std::int64_t wait_ns = *next - clock_.now_ns();
  if (wait_ns > 0) changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
}

void PacedDisk::serve() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const std::int64_t now_ns = clock_.now_ns();
    if (finish_due(now_ns)) {
      results_ready_.raise();
    } else if (const auto service = model_.start(now_ns)) {
      move(*service, lock);
    } else {
      wait_for_event(lock);
    }
  }
}

std::size_t PacedDisk::poll(std::span<IoResult> results) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(results.size(), finished_.size());
  const auto end = finished_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(finished_.begin(), end, results.begin());
  finished_.erase(finished_.begin(), end);
  if (finished_.empty()) results_ready_.clear();
  return count;
}

IoCounters PacedDisk::counters() const {
  const std::lock_guard lock(mutex_);
  return tally_.counters(clock_.now_ns());
}

}  // namespace strata
