#include "cpu/stream_thread.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.hpp"

namespace strata {
namespace {

void run_work(const CopyWork& work) {
  if (work.size > Bytes{0}) std::memcpy(work.dst, work.src, work.size.value);
}
void run_work(const ZeroWork& work) {
  if (work.size > Bytes{0}) std::memset(work.dst, 0, work.size.value);
}
void run_work(const HostFunction& function) { function(); }
void run_work(const ElementOp& op) { run_on_host(op); }
void run_work(const RecordWork&) {}
void run_work(const WaitWork&) {}

}  // namespace

StreamThread::StreamThread(StreamId id, std::string_view name, EventPool& events,
                           StreamHooks* hooks)
    : id_(id), name_(name), events_(events), hooks_(hooks), thread_([this] { run(); }) {
  // The kernel keeps 15 characters. A name is for people only, so a refusal is no error.
  static_cast<void>(::pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str()));
}

StreamThread::~StreamThread() {
  begin_close();
  join();
}

void StreamThread::push(StreamWork work) {
  const std::lock_guard lock(mutex_);
  STRATA_ASSERT(!closing_, fmt::format("work enqueued on closed stream '{}'", name_));
  incoming_.push_back(std::move(work));
  changed_.notify_one();
}

double StreamThread::busy_seconds() const {
  return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) * 1e-9;
}

void StreamThread::begin_close() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  changed_.notify_one();
}

void StreamThread::join() {
  if (thread_.joinable()) thread_.join();
}

void StreamThread::run() noexcept {
  while (take_batch()) {
    for (StreamWork& entry : batch_) {
      // Moved out, so that what a function captured dies right after it has run.
      const StreamWork work = std::move(entry);
      execute(work);
    }
    batch_.clear();
  }
}

bool StreamThread::take_batch() {
  std::unique_lock lock(mutex_);
  if (incoming_.empty() && !closing_ && hooks_ != nullptr) {
    lock.unlock();
    hooks_->idle(id_);
    lock.lock();
  }
  changed_.wait(lock, [&] { return !incoming_.empty() || closing_; });
  batch_.swap(incoming_);
  return !batch_.empty();
}

void StreamThread::execute(const StreamWork& work) {
  if (hooks_ != nullptr) hooks_->before(id_, work);
  if (const auto* record = std::get_if<RecordWork>(&work)) {
    events_.fire(record->event, scratch_);
  } else if (const auto* wait = std::get_if<WaitWork>(&work)) {
    events_.wait(wait->event);
    if (hooks_ != nullptr) hooks_->after(id_, work);
  } else {
    execute_timed(work);
  }
}

void StreamThread::execute_timed(const StreamWork& work) {
  const auto begin = std::chrono::steady_clock::now();
  std::visit([](const auto& one) { run_work(one); }, work);
  if (hooks_ != nullptr) hooks_->after(id_, work);
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  busy_ns_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count(),
                     std::memory_order_relaxed);
}

}  // namespace strata
