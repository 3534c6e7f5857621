// A Device in virtual time: streams, events and links, and no payload. Its arena is addresses that
// nobody can read. Functions that are launched are not called: they take no time, or with
// launch_for() what they are declared to take.
//
// Ownership: the machine outlives the device. Thread: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "strata/device.hpp"
#include "virtual/link_model.hpp"
#include "virtual/virtual_machine.hpp"

namespace strata {

class VirtualDevice final : public Device {
 public:
  struct Options {
    Bytes arena;
    LinkPace host_to_device;
    LinkPace device_to_host;
    LinkPace device_to_device;       // also zero()
    double elements_per_second = 0;  // of element ops; 0: they take no time
  };

  // Throws Error(device) when the process has no room for the addresses.
  VirtualDevice(VirtualMachine& machine, const Options& options);
  ~VirtualDevice() override;
  VirtualDevice(const VirtualDevice&) = delete;
  VirtualDevice& operator=(const VirtualDevice&) = delete;

  // Work that takes `duration` of the stream's time.
  void launch_for(StreamId stream, std::chrono::nanoseconds duration);

  std::string_view name() const override { return "virtual"; }
  std::span<std::byte> arena() override { return arena_; }
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
  void register_host(std::span<std::byte>) override {}
  void unregister_host(std::span<std::byte>) override {}
  void note_lease(std::span<std::byte>) override {}
  void note_release(std::span<std::byte>) override {}
  double busy_seconds(StreamId stream) const override;
  void close() override;

 private:
  struct Transfer {
    CopyKind kind;
    Bytes size;
  };
  struct Timed {
    std::int64_t duration_ns;
  };
  struct Wait {
    Event event;
  };
  struct Record {
    Event event;
  };
  using Work = std::variant<Transfer, Timed, Wait, Record>;

  struct Stream {
    std::deque<Work> queue;
    bool stopped = false;  // by work that runs, or by an event
    std::int64_t busy_ns = 0;
  };
  struct Slot {
    std::uint64_t generation = 0;
    bool fired = true;
    std::vector<std::uint32_t> streams;  // that wait
    std::vector<HostFunction> callbacks;
  };

  void push(StreamId stream, const Work& work);
  // Goes on with every stream that can.
  void go_on();
  void advance(std::uint32_t stream);
  void fire(Event event);
  std::int64_t end_of(const Transfer& transfer);
  std::int64_t end_of(const Timed& timed);

  VirtualMachine& machine_;
  const double elements_per_second_;
  LinkModel links_[3];  // by CopyKind
  std::span<std::byte> arena_;
  std::deque<Stream> streams_;
  std::vector<std::uint32_t> able_;  // streams to go on with
  bool going_on_ = false;
  std::deque<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
};

}  // namespace strata
