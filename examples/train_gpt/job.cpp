#include "job.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "strata/session.hpp"

namespace train_gpt {
namespace {

using namespace std::chrono_literals;

// A rank that failed waits this long for the others' side of the story.
constexpr std::chrono::milliseconds kPatienceAfterFailure = 5s;
constexpr std::chrono::milliseconds kPatience = 10min;

// What ranks tell each other.
struct Record {
  std::int32_t code = 0;
  std::uint32_t secondary = 0;
};

}  // namespace

Job::Job() {
  // Only short messages pass here.
  if (strata::launched_by_mpi()) {
    communicator_ = strata::make_mpi_communicator(
        {.shared_memory = false, .window = strata::Bytes{std::uint64_t{64} << 10}});
  } else if (strata::launched_by_environment()) {
    communicator_ = strata::make_tcp_communicator();
  } else {
    return;
  }
  rank_ = communicator_->rank();
  size_ = communicator_->size();
}

std::unique_ptr<strata::Communicator> Job::connect(const strata::Config& config) const {
  return size_ == 1 ? strata::make_self_communicator() : strata::make_communicator(config);
}

Outcome Job::agree(const Outcome& mine) {
  if (size_ == 1) return mine;
  const bool failed = !mine.message.empty();
  const Record record{static_cast<std::int32_t>(mine.code), mine.secondary ? 1U : 0U};
  try {
    communicator_->set_timeout(failed ? kPatienceAfterFailure : kPatience);
    return pick(communicator_->exchange(std::as_bytes(std::span(&record, 1))), mine);
  } catch (const strata::Error& error) {
    if (!failed) return outcome_of(error);
    return {mine.code, fmt::format("rank {}: {}", rank_.value, mine.message), mine.secondary};
  }
}

Outcome Job::pick(const std::vector<std::byte>& all, const Outcome& mine) const {
  std::vector<Record> records(size_);
  std::memcpy(records.data(), all.data(), all.size());
  const auto first = [&](auto&& matches) {
    std::uint32_t r = 0;
    while (r < size_ && !matches(records[r])) ++r;
    return r;
  };
  std::uint32_t speaker = first([](const Record& r) { return r.code != 0 && r.secondary == 0; });
  if (speaker == size_) speaker = first([](const Record& r) { return r.code != 0; });
  if (speaker == size_) return mine;
  Outcome outcome{static_cast<ExitCode>(records[speaker].code), {}, false};
  if (speaker == rank_.value && !mine.message.empty()) {
    outcome.message = fmt::format("rank {}: {}", speaker, mine.message);
  }
  return outcome;
}

}  // namespace train_gpt
