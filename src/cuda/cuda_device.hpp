// Device on an NVIDIA GPU, by the CUDA runtime. Streams are non-blocking (they do not wait for the
// legacy default stream); host memory is pinned by register_host(); waits sleep, they do not spin.
// Nothing synchronises the whole device; close() waits for the streams that this device knows.
//
// Several devices in a process work side by side. Every call makes this GPU the calling thread's
// current device, as cudaSetDevice() does, and leaves it so. Once pools are warm, enqueueing
// allocates only what a HostFunction or an UpdateOp captures. launch() runs functions on a thread
// of the CUDA runtime: they may touch host memory only.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/first_failure.hpp"
#include "cuda/arena.hpp"
#include "cuda/event_pool.hpp"
#include "cuda/event_watcher.hpp"
#include "cuda/host_calls.hpp"
#include "cuda/stream_timer.hpp"
#include "ports/device_memory.hpp"
#include "strata/device.hpp"

namespace strata {

class CudaDevice final : public Device {
 public:
  struct Options {
    Bytes arena;
    int index = 0;  // among the GPUs that CUDA_VISIBLE_DEVICES leaves
    cuda::ArenaSource source = cuda::ArenaSource::malloc;
  };

  // Throws Error(not_supported) without a GPU, with a driver older than the toolkit of this build
  // or a GPU before compute capability 8.0; Error(config) for an index that does not exist;
  // Error(budget_exceeded) when the GPU cannot give the arena. Blocks.
  explicit CudaDevice(const Options& options);
  ~CudaDevice() override;

  // How many GPUs this process can use. Throws Error(not_supported) for none, telling why.
  static int count();

  int index() const { return index_; }
  // The GPU itself, whatever index a process gives it. Equal for two ranks that share one.
  const std::array<char, 16>& uuid() const { return uuid_; }
  cudaStream_t stream(StreamId stream) const { return find(stream).handle; }
  // Takes part in the order of a stream that the program owns, and that outlives this device's use.
  StreamId adopt_stream(cudaStream_t stream, std::string_view name);

  std::string_view name() const override { return name_; }
  std::span<std::byte> arena() override { return arena_->bytes(); }
  bool host_addressable() const override { return false; }

  StreamId create_stream(std::string_view name) override;
  void copy(StreamId stream, void* dst, const void* src, Bytes size, CopyKind kind) override;
  void zero(StreamId stream, void* dst, Bytes size) override;
  void launch(StreamId stream, HostFunction function,
              std::span<const Access> accesses = {}) override;
  void element_op(StreamId stream, const ElementOp& op) override;

  Event record(StreamId stream) override { return events_.record(stream); }
  void wait(StreamId stream, Event event) override { events_.wait(stream, event); }
  bool done(Event event) const override { return events_.done(event); }
  void synchronize(Event event) override;
  void notify(Event event, HostFunction function) override;

  void register_host(std::span<std::byte> memory) override;
  void unregister_host(std::span<std::byte> memory) override;
  void note_lease(std::span<std::byte>) override {}
  void note_release(std::span<std::byte>) override {}

  std::optional<Error> failure() const override { return failure_.get(); }
  double busy_seconds(StreamId stream) const override;
  void close() override;

 private:
  struct Stream {
    Stream(int device, cudaStream_t cuda_stream, bool is_owned, std::string_view stream_name,
           FirstFailure& failure)
        : handle(cuda_stream),
          owned(is_owned),
          name(stream_name),
          timer(device, cuda_stream, failure) {}

    const cudaStream_t handle;
    const bool owned;
    const std::string name;
    cuda::StreamTimer timer;
    std::atomic<std::int64_t> host_ns = 0;        // in launched functions
    std::unique_ptr<cuda::EventWatcher> watcher;  // guarded by CudaDevice::mutex_
  };

  void describe_gpu();
  StreamId add_stream(cudaStream_t handle, bool owned, std::string_view name);
  Stream& find(StreamId stream) const;
  // Enqueues one timed piece of work by `call`, a function of the stream that returns a result.
  template <class Call>
  void enqueue(StreamId stream, std::string_view what, Call&& call);
  bool succeeded(cudaError_t result, std::string_view what, const Stream& stream);
  void require_in_arena(const void* data, Bytes size, std::string_view what) const;
  void require_pinned(const void* data, Bytes size, const Stream& stream) const;

  const int index_;
  std::string name_;
  std::array<char, 16> uuid_{};
  FirstFailure failure_;
  mutable cuda::EventPool events_;
  cuda::HostCalls host_calls_;
  std::unique_ptr<cuda::Arena> arena_;

  mutable std::mutex mutex_;
  mutable std::deque<Stream> streams_;  // guarded by mutex_
  RegisteredRanges registered_;         // guarded by mutex_
  bool closed_ = false;                 // guarded by mutex_
};

}  // namespace strata
