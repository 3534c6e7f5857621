#include "files/transfer.hpp"

#include <cerrno>

namespace strata::files {

Transfer::Next Transfer::finish(std::int64_t result) {
  result_ = result;
  return Next::finished;
}

Transfer::Next Transfer::advance(std::int64_t answer) {
  const bool in_vain = answer == -EINTR || answer == -EAGAIN;
  if (answer < 0 && !in_vain) return finish(answer);
  if (is_flush_ && !in_vain) return finish(0);
  if (answer == 0) return finish(reading_ || size_ == 0 ? static_cast<std::int64_t>(done_) : -EIO);
  const std::uint64_t reached = answer > 0 ? done_ + static_cast<std::uint64_t>(answer) : done_;
  if (reached >= size_ && !is_flush_) return finish(static_cast<std::int64_t>(size_));
  const std::uint64_t resume = reached / block_ * block_;
  // Only the end of the file stops a read inside a block.
  if (reading_ && resume != reached) return finish(static_cast<std::int64_t>(reached));
  const bool idle = resume == done_;
  done_ = resume;
  if (!idle) return Next::again;
  if (++idle_tries_ == kMostIdleTries) return finish(answer < 0 ? answer : -EIO);
  return Next::again_later;
}

}  // namespace strata::files
