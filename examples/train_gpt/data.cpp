#include "data.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "counter_rng.hpp"
#include "strata/error.hpp"

namespace train_gpt {
namespace {

using strata::Error;
using strata::ErrorCode;

std::uint64_t width_of(TokenFormat format) {
  switch (format) {
    case TokenFormat::bytes: return 1;
    case TokenFormat::u16: return 2;
    case TokenFormat::u32: return 4;
  }
  return 1;
}

[[noreturn]] void fail(ErrorCode code, std::string_view message, const std::string& path,
                       int errnum = 0) {
  strata::ErrorContext context;
  context.errnum = errnum;
  context.path = path;
  throw Error(code, message, context);
}

[[noreturn]] void fail_io(std::string_view message, int errnum, const std::string& path) {
  fail(ErrorCode::io, message, path, errnum);
}

[[noreturn]] void fail_content(std::string_view message, const std::string& path) {
  fail(ErrorCode::config, message, path);
}

// Opens a regular file and returns its descriptor. O_NONBLOCK: a FIFO must not hang the open.
int open_regular(const std::string& path, std::uint64_t& size_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_io("cannot open the data file", errno, path);
  struct stat status {};
  const int errnum = ::fstat(descriptor, &status) != 0 ? errno : 0;
  if (errnum == 0 && S_ISREG(status.st_mode)) {
    size_bytes = static_cast<std::uint64_t>(status.st_size);
    return descriptor;
  }
  ::close(descriptor);
  if (errnum != 0) fail_io("cannot examine the data file", errnum, path);
  if (S_ISDIR(status.st_mode)) fail_io("the data file is a directory; name a file", 0, path);
  fail_io("the data file is not a regular file", 0, path);
}

// Little endian, whatever the machine.
std::uint32_t decode(const std::byte* bytes, std::uint64_t width_bytes) {
  std::uint32_t value = 0;
  for (std::uint64_t i = 0; i < width_bytes; ++i) {
    value |= std::to_integer<std::uint32_t>(bytes[i]) << (8 * i);
  }
  return value;
}

std::uint64_t checked_count(std::uint64_t size_bytes, std::uint64_t width_bytes,
                            std::uint64_t sequence, const std::string& path) {
  if (size_bytes == 0) fail_content("the data file is empty", path);
  if (size_bytes % width_bytes != 0) {
    fail_content(fmt::format("the token file's size, {} bytes, is not a multiple of {}, the width "
                             "of a token; check the token width",
                             size_bytes, width_bytes),
                 path);
  }
  const std::uint64_t count = size_bytes / width_bytes;
  if (count < sequence + 1) {
    fail_content(fmt::format("the data file holds {} tokens, but one sequence needs {}; use a "
                             "longer file or a shorter sequence",
                             count, sequence + 1),
                 path);
  }
  return count;
}

}  // namespace

Dataset::Dataset(const std::string& path, TokenFormat format, std::uint32_t vocab,
                 std::uint32_t sequence)
    : path_(path),
      width_bytes_(width_of(format)),
      vocab_(vocab),
      sequence_(sequence),
      raw_((sequence_ + 1) * width_bytes_) {
  std::uint64_t size_bytes = 0;
  descriptor_ = open_regular(path, size_bytes);
  try {
    count_tokens_ = checked_count(size_bytes, width_bytes_, sequence_, path_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  const std::uint64_t eval_tokens = count_tokens_ / 20;
  if (eval_tokens >= sequence_ + 1) eval_begin_ = count_tokens_ - eval_tokens;
}

Dataset::~Dataset() { ::close(descriptor_); }

void Dataset::read_batch(std::uint64_t seed, Split split, const BatchId& id,
                         std::span<std::uint32_t> inputs, std::span<std::uint32_t> targets) {
  if (inputs.size() != targets.size() || inputs.size() % sequence_ != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a batch of {} inputs and {} targets is not rows of {} tokens",
                            inputs.size(), targets.size(), sequence_));
  }
  for (std::uint64_t row = 0; row < inputs.size() / sequence_; ++row) {
    const std::uint64_t start = draw_start(seed, split, id, row);
    read_sequence(start);
    for (std::uint64_t i = 0; i < sequence_; ++i) {
      inputs[row * sequence_ + i] = token(i, start);
      targets[row * sequence_ + i] = token(i + 1, start);
    }
  }
}

std::uint64_t Dataset::draw_start(std::uint64_t seed, Split split, const BatchId& id,
                                  std::uint64_t row) const {
  const bool eval = split == Split::eval;
  const std::uint64_t begin = eval ? eval_begin_ : 0;
  const std::uint64_t end = eval || !has_eval_split() ? count_tokens_ : eval_begin_;
  std::uint64_t key = counter_rng::at(seed, eval ? "eval" : "train");
  key = counter_rng::at(key, id.step);
  key = counter_rng::at(key, id.micro_batch);
  key = counter_rng::at(key, id.rank);
  return begin + counter_rng::below(key, row, end - begin - sequence_);
}

void Dataset::read_sequence(std::uint64_t start_token) {
  const std::uint64_t offset = start_token * width_bytes_;
  std::uint64_t have = 0;
  while (have < raw_.size()) {
    const ssize_t got = ::pread(descriptor_, raw_.data() + have, raw_.size() - have,
                                static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io("cannot read the data file", errno, path_);
    if (got == 0) fail_io("the data file became shorter while it was in use", 0, path_);
    have += static_cast<std::uint64_t>(got);
  }
}

std::uint32_t Dataset::token(std::uint64_t index, std::uint64_t start_token) const {
  const std::uint32_t id = decode(raw_.data() + index * width_bytes_, width_bytes_);
  if (id >= vocab_) {
    fail_content(fmt::format("token {} at position {} is not below the vocabulary size {}; check "
                             "the model's vocabulary and the token width",
                             id, start_token + index, vocab_),
                 path_);
  }
  return id;
}

}  // namespace train_gpt
