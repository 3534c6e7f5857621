// Decides from the calls alone, independent of timing, whether a program's device work is ordered:
// a happens-before race detector over byte ranges, in the manner of FastTrack (Flanagan & Freund,
// PLDI 2009), with the host as the one who knows what has finished, plus the state of every arena
// byte: leased or free, written or not.
//
// Reported: two accesses, at least one a write, that no chain of events, waits and host knowledge
// orders; device access to bytes that nobody leases; reads of leased bytes that nothing has
// written; leases of bytes that are leased, still in use, or were written while free; releases of
// bytes that are still in use or not leased. One message per access and kind.
//
// Leasing fills bytes with kPoison (NaN in fp32, bf16 and fp16); releasing fills them with
// kCanary, which the next lease looks for. Bytes that were never leased must still be zero.
// Thread: one at a time; the owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/device.hpp"
#include "support/range_map.hpp"
#include "support/vector_clock.hpp"

namespace strata::test {

class OrderChecker {
 public:
  using Report = std::function<void(std::string)>;

  static constexpr std::byte kPoison{0xFF};
  static constexpr std::byte kCanary{0xC5};

  // With `check_leases` off, all arena bytes count as leased and written, and are left alone.
  OrderChecker(std::span<std::byte> arena, bool check_leases, Report report);

  // Streams are numbered in the order of these calls.
  void add_stream(std::string_view name);

  // One op at the end of `stream`. `kind` has static storage.
  void op(StreamId stream, std::string_view kind, std::span<const Access> accesses);

  void record(StreamId stream, Event event);
  void wait(StreamId stream, Event event);

  // The host has learnt that `event` fired. Ops enqueued later come after it.
  void host_knows(Event event);

  // A point after all that is enqueued on `stream` now, for when the host learns of it otherwise.
  VectorClock point(StreamId stream) const { return streams_.at(stream.value); }
  void host_knows(const VectorClock& point) { host_.join(point); }

  // Whether the host can tell that `event` has fired, or that `stream` has nothing left to run.
  bool is_known(Event event) const;
  bool is_known_idle(StreamId stream) const { return host_.covers(streams_.at(stream.value)); }

  // The host itself touches memory now.
  void host_access(std::string_view kind, const Access& access);

  void lease(std::span<std::byte> memory);
  void release(std::span<std::byte> memory);

  // All work has run: looks at the canaries of every free byte.
  void finish();

  // Pieces of memory that are told apart now.
  std::size_t ranges() const { return cells_.size(); }

 private:
  enum class State : std::uint8_t { host, free, leased };

  // The `count`-th op of `stream` touched the bytes; 0: nobody did.
  struct Touch {
    StreamId stream;
    std::uint64_t count = 0;
    std::string_view kind;
    bool operator==(const Touch&) const = default;
  };

  struct Cell {
    State state = State::host;
    bool written = false;
    std::byte free_fill{0};  // what a free byte must hold
    Touch last_write;
    std::vector<Touch> reads;  // since last_write, at most one per stream
    bool operator==(const Cell&) const = default;
  };

  void check_access(const VectorClock& now, const std::string& who, const Access& access);
  void check_state(const Cell& cell, const Access& access, AddressRange range,
                   const std::string& who);
  static void apply(const Touch& touch, bool writes, Cell& cell);
  static const Touch* find_unordered(const VectorClock& now, const Cell& cell, bool writes);
  bool require_finished(const Cell& cell, AddressRange range, std::string_view what);
  bool require_intact(const Cell& cell, AddressRange range);
  void report_once(std::string_view kind, std::string message);
  void forget_what_the_host_knows();

  std::string describe(const Touch& touch) const;
  std::string describe(AddressRange range) const;

  const AddressRange arena_;
  const bool check_leases_;
  const Report report_;

  std::vector<std::string> stream_names_;
  std::vector<VectorClock> streams_;
  VectorClock host_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, VectorClock> events_;
  RangeMap<Cell> cells_;
  std::size_t forget_at_ranges_ = 1024;
  std::size_t forget_at_events_ = 1024;
  std::vector<std::string_view> told_;  // kinds reported for the current access
};

}  // namespace strata::test
