// The ranks of this run as processes that start and end together. Its communicator is apart from
// the session's, so that ranks can still agree on who knows what went wrong, and on one exit code,
// after the session's has failed.
// Thread: one at a time; every rank makes the same calls.
#pragma once

#include <memory>

#include "failure.hpp"
#include "strata/communicator.hpp"
#include "strata/config.hpp"

namespace train_gpt {

class Job {
 public:
  // Joins the other ranks if a launcher started several. Throws strata::Error. Blocks.
  Job();

  strata::Rank rank() const { return rank_; }
  std::uint32_t size() const { return size_; }
  bool is_first() const { return rank_.value == 0; }

  // The communicator for a session. Throws strata::Error. Collective. Blocks.
  std::unique_ptr<strata::Communicator> connect(const strata::Config& config) const;

  // Shares how each rank fared and returns what that means for the job: the failure of the first
  // rank that knows a cause. Its message is kept by one rank only, the one that should print it.
  // Blocks until all ranks have called, but not for long after a failure.
  Outcome agree(const Outcome& mine);

 private:
  Outcome pick(const std::vector<std::byte>& all, const Outcome& mine) const;

  std::unique_ptr<strata::Communicator> communicator_;  // null for one rank
  strata::Rank rank_;
  std::uint32_t size_ = 1;
};

}  // namespace train_gpt
