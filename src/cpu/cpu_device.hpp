// Device on a CPU: the arena is host memory and every stream is a thread, so that work is as
// asynchronous as on a GPU and a missing wait is a race here too. Runs in production on machines
// without a GPU, and beneath the devices that tests and benchmarks use (tests/support).
// Once its queues are warm, enqueueing allocates only what a HostFunction or an UpdateOp captures.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/event_pool.hpp"
#include "cpu/host_arena.hpp"
#include "cpu/stream_thread.hpp"
#include "ports/device_memory.hpp"
#include "strata/device.hpp"

namespace strata {

class CpuDevice final : public Device {
 public:
  struct Options {
    Bytes arena;
    std::string name = "cpu";
    StreamHooks* hooks = nullptr;  // borrowed; may be null
  };

  // Throws Error(device) when the arena cannot be mapped.
  explicit CpuDevice(Options options);
  ~CpuDevice() override;

  std::string_view name() const override { return name_; }
  std::span<std::byte> arena() override { return arena_.bytes(); }
  bool host_addressable() const override { return true; }

  StreamId create_stream(std::string_view name) override;
  void copy(StreamId stream, void* dst, const void* src, Bytes size, CopyKind kind) override;
  void zero(StreamId stream, void* dst, Bytes size) override;
  void launch(StreamId stream, HostFunction function,
              std::span<const Access> accesses = {}) override;
  void element_op(StreamId stream, const ElementOp& op) override;

  Event record(StreamId stream) override;
  void wait(StreamId stream, Event event) override;
  bool done(Event event) const override { return events_.done(event); }
  void synchronize(Event event) override { events_.wait(event); }
  void notify(Event event, HostFunction function) override;

  void register_host(std::span<std::byte> memory) override;
  void unregister_host(std::span<std::byte> memory) override;
  void note_lease(std::span<std::byte>) override {}
  void note_release(std::span<std::byte>) override {}

  double busy_seconds(StreamId stream) const override { return find(stream).busy_seconds(); }
  void close() override;

 private:
  StreamThread& find(StreamId stream) const;
  void require_in_arena(const void* data, Bytes size, std::string_view what) const;

  const std::string name_;
  StreamHooks* const hooks_;
  HostArena arena_;
  EventPool events_;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<StreamThread>> streams_;  // guarded by mutex_
  RegisteredRanges registered_;                         // guarded by mutex_
  bool closed_ = false;                                 // guarded by mutex_
};

}  // namespace strata
