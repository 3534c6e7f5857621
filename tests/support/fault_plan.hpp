// Which request of a simulated disk fails, and how: planned ("the k-th write is torn") or drawn by
// a seeded chance per kind of fault. A plan is a function of its seed and of the order of
// submission, so that a run can be repeated. Not synchronised: guarded by its disk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/rng.hpp"
#include "strata/block_io.hpp"

namespace strata::test {

enum class Fault : std::uint8_t {
  io_error,           // -EIO; a part of the sectors may have moved
  no_space,           // -ENOSPC on a write; nothing lands
  short_transfer,     // a read or write moves fewer sectors and says so
  torn_write,         // success, but only a prefix of the sectors lands
  lost_write,         // success, but nothing lands
  misdirected_write,  // success, but it lands at another offset
  misdirected_read,   // success with the data of another offset
  bit_flip_on_read,   // one bit differs in the buffer, not on the disk
  bit_flip_at_rest,   // one bit of a write differs on the disk
  stale_read,         // success with what stood there before the last write
  slow,               // takes slow_ticks longer
};
inline constexpr std::size_t kFaultCount = 11;

std::string_view name_of(Fault fault);
std::string_view name_of(IoOp op);

// Seeded draws in a fixed order.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  double uniform() { return rng::uniform(seed_, next_++); }
  // Uniform in [0, bound). Pre: bound > 0.
  std::uint64_t below(std::uint64_t bound) { return rng::at(seed_, next_++) % bound; }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

class FaultPlan {
 public:
  explicit FaultPlan(std::uint64_t seed) : draws_(seed) {}

  // Fails the k-th request from now (0: the next) of those that `fault` can befall.
  void fail(Fault fault, std::uint64_t k) { planned_.push_back({fault, k}); }
  void set_probability(Fault fault, double probability);

  // The fault of the next submitted request; at most one each, planned ones first. `sector` is the
  // unit that moves as a whole.
  std::optional<Fault> next(const IoRequest& request, Bytes file_size, Bytes sector);

 private:
  struct Planned {
    Fault fault;
    std::uint64_t remaining;
  };

  std::optional<Fault> next_planned(const IoRequest& request, Bytes file_size, Bytes sector);

  Draws draws_;
  std::vector<Planned> planned_;
  std::array<double, kFaultCount> probability_{};
};

// Whether `fault` can befall the request: a torn write needs a write with bytes in it, a
// misdirected transfer another place in the file that is as large.
bool applies(Fault fault, const IoRequest& request, Bytes file_size, Bytes sector);

}  // namespace strata::test
