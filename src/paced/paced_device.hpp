// A Device whose work takes the time that it is declared to take, without CPU: copies take
// latency + size / rate of their link, launch_for() takes a duration. It stands for a GPU in
// benchmarks on machines without one; bytes still move for real, and work
// that takes longer than declared takes as long as it takes.
//
// Time is real. A stream sleeps until an absolute deadline that is computed from declared
// durations, also across event waits, so late wake-ups do not add up. A link carries one copy at a
// time, in the order in which streams reach it. A launched function without a duration takes the
// time it takes.
// Thread: any, as Device says.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/cpu_device.hpp"
#include "strata/device.hpp"
#include "virtual/link_model.hpp"

namespace strata {

// Decides on the streams' threads when work counts as done.
class Pacer final : public StreamHooks {
 public:
  Pacer(LinkPace host_to_device, LinkPace device_to_host, LinkPace device_to_device,
        double elements_per_second);

  void add_stream();
  // Called by the running function of `stream`: it takes `duration` from its start.
  void declare(StreamId stream, std::chrono::nanoseconds duration);

  void idle(StreamId stream) override;
  void before(StreamId stream, const StreamWork& work) override;
  void after(StreamId stream, const StreamWork& work) override;

 private:
  struct Stream {
    std::int64_t ready_ns = 0;       // when the work before ended, as declared
    std::int64_t real_begin_ns = 0;  // when the running work really began
    std::int64_t declared_ns = -1;
    bool idle = true;
  };
  struct Stamp {
    std::uint64_t generation = 0;
    std::int64_t fired_ns = 0;
  };

  Stream& find(StreamId stream);
  std::int64_t end_of(Stream& stream, const StreamWork& work);
  std::int64_t reserve(CopyKind kind, std::int64_t begin_ns, Bytes size);
  void stamp(Event event, std::int64_t fired_ns);
  std::int64_t fired_ns(Event event);

  const double elements_per_second_;
  std::mutex mutex_;
  std::deque<Stream> streams_;  // each used by its own thread only
  LinkModel links_[3];          // by CopyKind; guarded by mutex_
  std::vector<Stamp> stamps_;   // by slot; guarded by mutex_
};

class PacedDevice final : public Device {
 public:
  struct Options {
    Bytes arena;
    std::string name = "paced";
    LinkPace host_to_device;  // rate 0: as fast as this machine copies
    LinkPace device_to_host;
    LinkPace device_to_device;       // also zero()
    double elements_per_second = 0;  // of element ops; 0: as fast as this machine computes
  };

  explicit PacedDevice(Options options);

  // Work that takes `duration` of the stream's time; `function` runs at its start (may be empty).
  void launch_for(StreamId stream, std::chrono::nanoseconds duration, HostFunction function = {},
                  std::span<const Access> accesses = {});

  std::string_view name() const override { return inner_.name(); }
  std::span<std::byte> arena() override { return inner_.arena(); }
  bool host_addressable() const override { return true; }

  StreamId create_stream(std::string_view name) override;
  void copy(StreamId stream, void* dst, const void* src, Bytes size, CopyKind kind) override {
    inner_.copy(stream, dst, src, size, kind);
  }
  void zero(StreamId stream, void* dst, Bytes size) override { inner_.zero(stream, dst, size); }
  void launch(StreamId stream, HostFunction function,
              std::span<const Access> accesses = {}) override;
  void element_op(StreamId stream, const ElementOp& op) override { inner_.element_op(stream, op); }

  Event record(StreamId stream) override { return inner_.record(stream); }
  void wait(StreamId stream, Event event) override { inner_.wait(stream, event); }
  bool done(Event event) const override { return inner_.done(event); }
  void synchronize(Event event) override { inner_.synchronize(event); }
  void notify(Event event, HostFunction function) override;

  void register_host(std::span<std::byte> memory) override { inner_.register_host(memory); }
  void unregister_host(std::span<std::byte> memory) override { inner_.unregister_host(memory); }
  void note_lease(std::span<std::byte>) override {}
  void note_release(std::span<std::byte>) override {}

  // The time that work took as declared, or longer where this machine was too slow.
  double busy_seconds(StreamId stream) const override { return inner_.busy_seconds(stream); }
  void close() override { inner_.close(); }

 private:
  Pacer pacer_;
  CpuDevice inner_;  // after the pacer, which its threads use
};

}  // namespace strata
