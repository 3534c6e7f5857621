// A Device for tests that is harsher than hardware, in two independent ways.
//
// Late and out of order: work runs on a CpuDevice, but only when something demands it
// (demand_gate.hpp), so a missing wait reads poison or old bytes instead of being saved by luck.
// Checked: every access that a call declares goes through a race detector and a lease checker
// (order_checker.hpp) when it is enqueued, so a violation is found whatever the timing was.
//
// copy(), zero() and element_op() declare their ranges themselves, host memory included; launch()
// declares `accesses` (an update in place declares the range as read and as written). A launched
// function may block for a while, as a collective does that waits for another rank.
// Thread: any, as Device says.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/cpu_device.hpp"
#include "strata/device.hpp"
#include "support/demand_gate.hpp"
#include "support/order_checker.hpp"

namespace strata::test {

class AdversarialDevice final : public Device {
 public:
  struct Options {
    Bytes arena;
    std::string name = "adversarial";
    std::uint64_t seed = 0;
    DemandPolicy policy = DemandPolicy::as_late_as_possible;
    // How long undemanded work is held at most. It bounds what ranks cost that wait for each other.
    std::chrono::milliseconds patience{10};
    bool check_leases = true;         // false: programs that do not announce their leases
    bool abort_on_violation = false;  // STRATA_ASSERT at the call that shows the first violation
  };

  explicit AdversarialDevice(Options options);
  ~AdversarialDevice() override;

  // What was found so far, in the order of the calls that showed it.
  std::vector<std::string> violations() const;

  // The host reads or writes memory that device work may also touch.
  void host_reads(const void* data, Bytes size);
  void host_writes(void* data, Bytes size);

  // The host calls `what`, after which no device work may touch the memory.
  void host_gives_up(std::string_view what, void* data, Bytes size);
  // Whether the host can tell that the event has fired, or that the stream has nothing left to run.
  bool is_known(Event event) const;
  bool is_known_idle(StreamId stream) const;

  // launch() that violations call `kind`, which has static storage.
  void launch_as(std::string_view kind, StreamId stream, HostFunction function,
                 std::span<const Access> accesses = {});
  // Demands a launch by which the host learns that all work before it on the stream has finished.
  void call_host(StreamId stream, HostFunction function);
  // All that is enqueued on `stream` now may run.
  void demand(StreamId stream) { gate_.demand(stream); }

  std::string_view name() const override { return inner_.name(); }
  std::span<std::byte> arena() override { return inner_.arena(); }
  bool host_addressable() const override { return true; }

  StreamId create_stream(std::string_view name) override;
  void copy(StreamId stream, void* dst, const void* src, Bytes size, CopyKind kind) override;
  void zero(StreamId stream, void* dst, Bytes size) override;
  void launch(StreamId stream, HostFunction function,
              std::span<const Access> accesses = {}) override;
  void element_op(StreamId stream, const ElementOp& op) override;

  Event record(StreamId stream) override;
  void wait(StreamId stream, Event event) override;
  bool done(Event event) const override;
  void synchronize(Event event) override;
  void notify(Event event, HostFunction function) override;

  void register_host(std::span<std::byte> memory) override;
  void unregister_host(std::span<std::byte> memory) override;
  void note_lease(std::span<std::byte> memory) override;
  void note_release(std::span<std::byte> memory) override;

  double busy_seconds(StreamId stream) const override { return inner_.busy_seconds(stream); }
  void close() override;

 private:
  void enqueue_checked(StreamId stream, std::string_view kind, std::span<const Access> accesses);
  void host_knows(Event event) const;
  void add_violation(std::string message);

  const bool abort_on_violation_;
  mutable DemandGate gate_;
  CpuDevice inner_;  // after the gate, which its threads use

  // Held while a call is checked and enqueued, so that both see the calls in one order.
  mutable std::mutex mutex_;
  mutable OrderChecker checker_;
  std::vector<std::string> violations_;
  bool closed_ = false;
};

}  // namespace strata::test
