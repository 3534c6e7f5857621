// The callback that a BlockIo calls after results became available. Any thread. Once set()
// returned, the previous callback is not running and will not run again, so that its owner may go.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

namespace strata::posix {

class Waker {
 public:
  void set(std::function<void()> callback) {
    const std::lock_guard lock(mutex_);
    callback_ = std::move(callback);
  }

  void wake() {
    const std::lock_guard lock(mutex_);
    if (callback_) callback_();
  }

 private:
  std::mutex mutex_;
  std::function<void()> callback_;
};

}  // namespace strata::posix
