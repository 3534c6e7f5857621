// Keeps the first error that asynchronous work met: the first one wins, later ones are its echo.
// Thread: any.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "strata/error.hpp"

namespace strata {

class FirstFailure {
 public:
  // True when `error` is the first.
  bool record(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (error_) return false;
    error_ = error;
    is_set_.store(true, std::memory_order_release);
    return true;
  }

  bool is_set() const { return is_set_.load(std::memory_order_acquire); }

  std::optional<Error> get() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

  void throw_if_set() const {
    if (!is_set()) return;
    const std::lock_guard lock(mutex_);
    throw Error(*error_);
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  std::atomic<bool> is_set_ = false;
};

}  // namespace strata
