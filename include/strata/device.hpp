// Port: one accelerator as Strata sees it. An arena of fixed size, streams, events with
// generations, copies, and work enqueued in stream order. The `cpu` adapter runs every stream on
// a thread of its own, so that work on a CPU is as asynchronous as on a GPU.
//
// Order: work on one stream runs in the order of the calls. Work on two streams is unordered
// unless an event orders it. The host knows that work has finished only through done(),
// synchronize() or notify() of an event recorded after it.
// Memory: pointers passed to copy() and zero() stay valid and untouched by others until the work
// has run. Device memory is the arena; everything else is host memory, and a copy uses only host
// memory that was told to register_host().
// Errors: create_stream(), register_host() and synchronize() throw Error(device). Enqueueing never
// throws for a fault of the device: the first is kept for failure(), work behind it may not run,
// and memory holds garbage. A broken contract (a wait on an event that was never recorded, a copy
// outside the arena) is an assertion.
// Thread: any, unless a method says otherwise. No method blocks but synchronize() and close().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "strata/element_ops.hpp"
#include "strata/error.hpp"
#include "strata/types.hpp"

namespace strata {

// A point in one stream's work. Devices recycle event slots whose work is done; the generation
// tells a recycled slot from the event that was asked about, so a handle never needs freeing and
// an old one simply reads as done. A default Event was never recorded.
struct Event {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;

  bool recorded() const { return generation != 0; }
  bool operator==(const Event&) const = default;
};

enum class CopyKind : std::uint8_t { host_to_device, device_to_host, device_to_device };

// Bytes that a launched function reads or writes. Devices that check order use it; others do not.
struct Access {
  const void* data = nullptr;
  Bytes size;
  bool writes = false;
};

using HostFunction = std::function<void()>;

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;

  // All the device memory there is for Strata; its size never changes. Aligned to 256 bytes.
  virtual std::span<std::byte> arena() = 0;

  // True when the CPU may dereference arena pointers (in stream order).
  virtual bool host_addressable() const = 0;

  // Streams live until close(). `name` appears in timelines and errors.
  virtual StreamId create_stream(std::string_view name) = 0;

  virtual void copy(StreamId stream, void* dst, const void* src, Bytes size, CopyKind kind) = 0;
  virtual void zero(StreamId stream, void* dst, Bytes size) = 0;

  // Runs a host function in stream order. It must not call the device and must not throw. Functions
  // of several streams wait for each other only on a device that is host_addressable(): a GPU may
  // run them one at a time.
  virtual void launch(StreamId stream, HostFunction function,
                      std::span<const Access> accesses = {}) = 0;

  // Runs `op` in stream order; every pointer in it lies in the arena.
  virtual void element_op(StreamId stream, const ElementOp& op) = 0;

  // An event that fires when all work enqueued on `stream` so far has run.
  virtual Event record(StreamId stream) = 0;

  // Work enqueued on `stream` from now on runs after `event` has fired. Pre: event.recorded().
  virtual void wait(StreamId stream, Event event) = 0;

  // Whether the event has fired; true for a generation that was recycled. Pre: event.recorded().
  virtual bool done(Event event) const = 0;

  // Throws failure(), if any. Blocks: until the event has fired. Pre: event.recorded().
  virtual void synchronize(Event event) = 0;

  // Calls `function` once, from a thread of the device, soon after the event has fired (from the
  // calling thread if it already has). The function must not block, throw or call the device.
  virtual void notify(Event event, HostFunction function) = 0;

  // Tells the device that [data, data + size) is host memory that copies will use (pinning on a
  // GPU). The range stays mapped until unregister_host() or close().
  virtual void register_host(std::span<std::byte> memory) = 0;
  virtual void unregister_host(std::span<std::byte> memory) = 0;

  // Tells the device that arena bytes were lent or given back. Devices that check use it to
  // detect reuse before last use and writes into bytes that nobody leases; others ignore it.
  virtual void note_lease(std::span<std::byte> memory) = 0;
  virtual void note_release(std::span<std::byte> memory) = 0;

  // Why work did not run, if so. Events still fire, since nothing more happens behind them; whoever
  // waited asks here before it uses what it waited for. Does not block.
  virtual std::optional<Error> failure() const { return std::nullopt; }

  // Seconds for which `stream` has been running work that was enqueued here.
  virtual double busy_seconds(StreamId stream) const = 0;

  // Waits for all enqueued work and ends the streams. Idempotent. Blocks.
  virtual void close() = 0;
};

}  // namespace strata
