#include "nccl/nccl_handle.hpp"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "nccl/check.hpp"

namespace strata::nccl {
namespace {

using namespace std::chrono_literals;

// Most settle within microseconds; connecting to peers takes longer, and then sleeping is right.
constexpr int kEagerPolls = 20;
constexpr auto kNap = 200us;

}  // namespace

Handle::Handle(const ncclUniqueId& id, std::uint32_t rank, std::uint32_t size,
               const Interrupt& interrupt) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t started =
      ncclCommInitRankConfig(&comm_, static_cast<int>(size), id, static_cast<int>(rank), &config);
  try {
    settle(started, "ncclCommInitRankConfig", interrupt);
  } catch (...) {
    abort();
    throw;
  }
}

Handle::~Handle() { abort(); }

bool Handle::settle(ncclResult_t result, std::string_view what, const Interrupt& interrupt) {
  for (int polls = 0; result == ncclInProgress; ++polls) {
    interrupt();
    if (polls >= kEagerPolls) std::this_thread::sleep_for(kNap);
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return false;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return true;
  throw error_of(result, what);
}

bool Handle::register_memory(std::span<std::byte> memory, const LogSink& log) {
#if NCCL_VERSION_CODE >= 21900
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr || memory.empty()) return false;
  const ncclResult_t result = ncclCommRegister(comm_, memory.data(), memory.size(), &registration_);
  if (result == ncclSuccess) return true;
  registration_ = nullptr;
  if (log) {
    log(LogLevel::info, fmt::format("{}; collectives copy through NCCL's own buffers",
                                    nccl::error_of(result, "ncclCommRegister", comm_).what()));
  }
#else
  if (log && !memory.empty()) {
    log(LogLevel::info, "this NCCL is older than 2.19: collectives copy through its own buffers");
  }
#endif
  return false;
}

void Handle::deregister_memory() {
#if NCCL_VERSION_CODE >= 21900
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr || registration_ == nullptr) return;
  check(ncclCommDeregister(comm_, std::exchange(registration_, nullptr)), "ncclCommDeregister",
        comm_);
#endif
}

bool Handle::enqueue(std::string_view what, const Interrupt& interrupt,
                     const std::function<ncclResult_t(ncclComm_t)>& calls) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return false;
    check(ncclGroupStart(), "ncclGroupStart", comm_);
    const ncclResult_t called = calls(comm_);
    result = ncclGroupEnd();
    if (called != ncclSuccess && called != ncclInProgress) result = called;
  }
  return settle(result, what, interrupt);
}

ncclResult_t Handle::async_error() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return ncclSuccess;
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &found);
  return asked == ncclSuccess ? found : asked;
}

Error Handle::error_of(ncclResult_t result, std::string_view call) {
  const std::lock_guard lock(mutex_);
  return nccl::error_of(result, call, comm_);
}

void Handle::finalize(const Interrupt& interrupt) {
  deregister_memory();
  ncclResult_t started = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    started = ncclCommFinalize(comm_);
  }
  if (!settle(started, "ncclCommFinalize", interrupt)) return;
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) check(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
}

void Handle::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  // Takes the registration along: to deregister would wait for work that only this call ends.
  // Nobody to tell: whoever aborts has an error of its own.
  [[maybe_unused]] const ncclResult_t result = ncclCommAbort(std::exchange(comm_, nullptr));
}

}  // namespace strata::nccl
