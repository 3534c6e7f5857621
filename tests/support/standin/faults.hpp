// Which calls of a run fail, which work faults and which waits are ignored, and how often each
// function was called: what fail(), fail_async(), ignore_wait() and calls() are about.
// Thread: one at a time; the runtime locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/standin/standin.hpp"

namespace strata::test::standin {

class Faults {
 public:
  // Asserts that there is such a function.
  void add(Failure failure);
  void add(NcclFailure failure);
  void add_async(std::uint64_t k, cudaError_t error) { async_[k] = error; }
  void ignore_wait(std::uint64_t n) { ignored_waits_.insert(n); }

  // Counts a call. Returns the failure that was asked for it.
  std::optional<Failure> next_cuda(std::string_view call);
  std::optional<NcclFailure> next_nccl(std::string_view call);

  // Counts a piece of work. Returns the error with which it faults.
  std::optional<cudaError_t> next_work();

  // Counts a wait. Returns whether it is ignored.
  bool next_wait_is_ignored() { return ignored_waits_.contains(waits_++); }

  std::map<std::string, std::uint64_t> calls() const { return {calls_.begin(), calls_.end()}; }
  std::uint64_t works() const { return works_; }
  std::uint64_t waits() const { return waits_; }

 private:
  std::uint64_t count(std::string_view call);

  std::map<std::string, std::uint64_t, std::less<>> calls_;
  std::vector<Failure> failures_;
  std::vector<NcclFailure> nccl_failures_;
  std::map<std::uint64_t, cudaError_t> async_;  // by number, from 1
  std::set<std::uint64_t> ignored_waits_;
  std::uint64_t works_ = 0;
  std::uint64_t waits_ = 0;
};

}  // namespace strata::test::standin
