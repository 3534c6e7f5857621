// What to do with the kernel's answers to one request until it is whole: short transfers are
// resumed, EINTR and EAGAIN repeated after a pause. Arithmetic only, so that adapters that block
// and adapters that do not share it and a test can script what the kernel answers.
#pragma once

#include <cstdint>

#include "strata/block_io.hpp"

namespace strata::files {

class Transfer {
 public:
  enum class Next : std::uint8_t {
    finished,     // result() is final
    again,        // ask for the rest, from done() on
    again_later,  // the same, but nothing moved: give the device a moment
  };

  Transfer() = default;
  // `block` is the offset alignment: a transfer is resumed at its multiples only.
  Transfer(IoOp op, Bytes size, Bytes block)
      : size_(size.value),
        block_(block.value),
        reading_(op == IoOp::read),
        is_flush_(op == IoOp::flush) {}

  // `answer`: bytes moved by the last call, which began at done(), or -errno.
  Next advance(std::int64_t answer);

  std::uint64_t done() const { return done_; }
  // Bytes moved (0 for a flush), or -errno; less than the size only at a read's end of file.
  std::int64_t result() const { return result_; }

 private:
  Next finish(std::int64_t result);

  // Tries without progress until their error is the result: with a pause of a millisecond each,
  // about ten seconds, so that a stuck device becomes an error and not a hang.
  static constexpr std::uint32_t kMostIdleTries = 10'000;

  std::uint64_t size_ = 0;
  std::uint64_t block_ = 1;
  std::uint64_t done_ = 0;
  std::int64_t result_ = 0;
  std::uint32_t idle_tries_ = 0;
  bool reading_ = true;
  bool is_flush_ = false;
};

}  // namespace strata::files
