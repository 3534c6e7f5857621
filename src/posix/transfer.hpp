// Turns partial and interrupted system calls into whole transfers. Separate from the adapter so
// that a test can script what the kernel answers.
#pragma once

#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <thread>

#include "strata/types.hpp"

namespace strata::posix {

enum class Direction : std::uint8_t { read, write };

// How long a call that makes no progress is repeated before its error is the result: about ten
// seconds, so that a stuck device becomes an error and not a hang.
inline constexpr int kMaxIdleTries = 10'000;
inline constexpr std::chrono::milliseconds kIdlePause{1};

// Repeats `call(done)`, which moves bytes from position `done` on and returns how many or -errno,
// until `size` bytes moved. `block` is the offset alignment: a transfer is resumed at its
// multiples only. Returns bytes moved, or -errno; less than `size` only at a read's end of file.
template <std::invocable<std::uint64_t> Call>
std::int64_t finish_transfer(Direction direction, Bytes size, Bytes block, Call&& call) {
  std::uint64_t done = 0;
  int idle_tries = 0;
  while (done < size.value) {
    const std::int64_t moved = call(done);
    if (moved == -EINTR) continue;
    if (moved < 0 && moved != -EAGAIN) return moved;
    if (moved == 0) return direction == Direction::read ? static_cast<std::int64_t>(done) : -EIO;
    const std::uint64_t reached = moved > 0 ? done + static_cast<std::uint64_t>(moved) : done;
    if (reached == size.value) break;
    const std::uint64_t resume = reached / block.value * block.value;
    // Only the end of the file stops a read inside a block.
    if (direction == Direction::read && resume != reached)
      return static_cast<std::int64_t>(reached);
    if (resume == done) {
      if (++idle_tries == kMaxIdleTries) return moved < 0 ? moved : -EIO;
      std::this_thread::sleep_for(kIdlePause);
    }
    done = resume;
  }
  return static_cast<std::int64_t>(size.value);
}

}  // namespace strata::posix
