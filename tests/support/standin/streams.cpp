// The entry points that make, order and await streams and events.
#include <chrono>

#include "support/standin/runtime.hpp"

namespace strata::test::standin {
namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

cudaError_t create_stream(Runtime& runtime, cudaStream_t* handle, unsigned flags) {
  if (handle == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) {
    return cudaErrorInvalidValue;
  }
  auto stream = std::make_shared<Stream>();
  stream->gpu = &runtime.current_gpu();
  *handle = runtime.streams.add(stream);
  stream->id = stream->gpu->device.create_stream(fmt::format("stream {}", stream->number));
  return cudaSuccess;
}

// Whether the event stands for something. If not, CUDA takes it as done, and the caller waits for
// nothing: a mistake that no run would show.
bool stands_for_work(Runtime& runtime, const CudaEvent& event) {
  if (event.event.recorded()) return true;
  runtime.violation(fmt::format("event {} was never recorded", event.number));
  return false;
}

bool is_pending(const Stream& stream) { return !stream.gpu->device.is_known_idle(stream.id); }
bool is_pending(const CudaEvent& event) {
  return event.event.recorded() && !event.gpu->device.is_known(event.event);
}

template <class T, class Handle>
cudaError_t destroy(Runtime& runtime, HandleTable<T, Handle>& table, const T& object,
                    Handle handle) {
  if (is_pending(object)) {
    runtime.violation(fmt::format("{} {} has work that the host does not know to have finished",
                                  table.kind(), object.number));
  }
  table.remove(handle);
  return cudaSuccess;
}

// Blocks without the lock.
cudaError_t wait_for(const Event& event, Gpu& gpu, Runtime::Lock& lock) {
  lock.unlock();
  if (event.recorded()) gpu.device.synchronize(event);
  return gpu.lost;
}

// The time in which the stream gets there, as a piece of work of its own.
void enqueue_timestamp(const Stream& stream, CudaEvent& event) {
  event.fired_ns = std::make_shared<std::atomic<std::int64_t>>(0);
  stream.gpu->device.launch_as("timestamp", stream.id,
                               [fired_ns = event.fired_ns] { *fired_ns = now_ns(); });
}

}  // namespace
}  // namespace strata::test::standin

using namespace strata::test::standin;  // NOLINT(google-build-using-namespace): extern "C" below

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return cuda_call("cudaDeviceGetStreamPriorityRange", [=](Runtime&, Runtime::Lock&) {
    if (least != nullptr) *least = kLeastPriority;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned int flags) {
  return cuda_call("cudaStreamCreateWithFlags", [=](Runtime& runtime, Runtime::Lock&) {
    return create_stream(runtime, handle, flags);
  });
}

// A priority changes nothing that a program may rely on.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned int flags, int) {
  return cuda_call("cudaStreamCreateWithPriority", [=](Runtime& runtime, Runtime::Lock&) {
    return create_stream(runtime, handle, flags);
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return cuda_call(
      "cudaStreamDestroy",
      [=](Runtime& runtime, Runtime::Lock&) {
        const auto stream = runtime.stream(handle);
        stream->destroyed = true;
        return destroy(runtime, runtime.streams, *stream, handle);
      },
      [=](Runtime& runtime) { runtime.streams.excuse(handle); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return cuda_call("cudaStreamSynchronize", [=](Runtime& runtime, Runtime::Lock& lock) {
    const auto stream = runtime.stream(handle);
    return wait_for(Runtime::tail_of(*stream), *stream->gpu, lock);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return cuda_call("cudaStreamQuery", [=](Runtime& runtime, Runtime::Lock&) {
    const auto stream = runtime.stream(handle);
    const strata::Event tail = Runtime::tail_of(*stream);
    const bool done = !tail.recorded() || stream->gpu->device.done(tail);
    return done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  return cuda_call("cudaStreamWaitEvent", [=](Runtime& runtime, Runtime::Lock&) {
    if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
    const auto stream = runtime.stream(handle);
    const auto event = runtime.event(event_handle);
    if (event->gpu != stream->gpu) {
      runtime.refuse(cudaErrorNotSupported,
                     "stream {} waits for event {} of another device, which is not stood in",
                     stream->number, event->number);
    }
    if (runtime.faults.next_wait_is_ignored()) return cudaSuccess;
    if (!stands_for_work(runtime, *event)) return cudaSuccess;
    stream->gpu->device.wait(stream->id, event->event);
    stream->stale = true;
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned int flags) {
  return cuda_call("cudaEventCreateWithFlags", [=](Runtime& runtime, Runtime::Lock&) {
    constexpr unsigned kFlags = cudaEventBlockingSync | cudaEventDisableTiming;
    if (handle == nullptr || (flags & ~kFlags) != 0) return cudaErrorInvalidValue;
    auto event = std::make_shared<CudaEvent>();
    event->gpu = &runtime.current_gpu();
    event->timing = (flags & cudaEventDisableTiming) == 0;
    *handle = runtime.events.add(std::move(event));
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return cuda_call(
      "cudaEventDestroy",
      [=](Runtime& runtime, Runtime::Lock&) {
        return destroy(runtime, runtime.events, *runtime.event(handle), handle);
      },
      [=](Runtime& runtime) { runtime.events.excuse(handle); });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return cuda_call("cudaEventRecord", [=](Runtime& runtime, Runtime::Lock&) {
    const auto event = runtime.event(handle);
    const auto stream = runtime.stream(stream_handle);
    if (event->gpu != stream->gpu) {
      runtime.refuse(cudaErrorInvalidResourceHandle,
                     "event {} belongs to device {} and stream {} to device {}", event->number,
                     event->gpu->index, stream->number, stream->gpu->index);
    }
    if (event->timing) enqueue_timestamp(*stream, *event);
    event->event = stream->gpu->device.record(stream->id);
    stream->tail = event->event;
    stream->stale = false;
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return cuda_call("cudaEventQuery", [=](Runtime& runtime, Runtime::Lock&) {
    const auto event = runtime.event(handle);
    if (!stands_for_work(runtime, *event)) return cudaSuccess;
    return event->gpu->device.done(event->event) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return cuda_call("cudaEventSynchronize", [=](Runtime& runtime, Runtime::Lock& lock) {
    const auto event = runtime.event(handle);
    if (!stands_for_work(runtime, *event)) return cudaSuccess;
    return wait_for(event->event, *event->gpu, lock);
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return cuda_call("cudaEventElapsedTime", [=](Runtime& runtime, Runtime::Lock&) {
    if (ms == nullptr) return cudaErrorInvalidValue;
    const auto start = runtime.event(start_handle);
    const auto end = runtime.event(end_handle);
    for (const auto& event : {start, end}) {
      if (!event->timing) {
        runtime.refuse(cudaErrorInvalidResourceHandle, "event {} was made without timing",
                       event->number);
      }
      if (!stands_for_work(runtime, *event)) return cudaErrorInvalidResourceHandle;
      if (!event->gpu->device.done(event->event)) return cudaErrorNotReady;
    }
    *ms = static_cast<float>(*end->fired_ns - *start->fired_ns) * 1e-6F;
    return cudaSuccess;
  });
}
