// The entry points that enqueue copies, sets, kernels and host functions.
#include <cstring>

#include "support/standin/runtime.hpp"

namespace strata::test::standin {
namespace {

// One end of a copy: where its bytes are, and what kind of memory they are in.
struct End {
  std::byte* bytes = nullptr;
  bool on_device = false;
  bool pageable = false;
};

End host_end(Runtime& runtime, const void* address, Bytes size, std::string_view what) {
  End end{static_cast<std::byte*>(const_cast<void*>(address))};
  const auto* found = runtime.registration_at(address);
  if (found == nullptr) {
    runtime.violation(
        fmt::format("{} {} + {} bytes is pageable memory; register it", what, address, size.value));
    end.pageable = true;
    return end;
  }
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(address) - found->first;
  if (size > found->second.size - Bytes{offset}) {
    runtime.refuse(cudaErrorInvalidValue,
                   "{} runs past its registration: {} bytes at offset {} of {}", what, size.value,
                   offset, found->second.size.value);
  }
  return end;
}

End end_of(Runtime& runtime, const Gpu& gpu, const void* address, Bytes size,
           std::string_view what) {
  if (runtime.gpu_at(address) == nullptr) return host_end(runtime, address, size, what);
  return {runtime.device_range(gpu, address, size, what), true};
}

std::string_view name_of(bool from_device, bool to_device) {
  if (from_device) return to_device ? "d2d copy" : "d2h copy";
  return to_device ? "h2d copy" : "h2h copy";
}

bool matches(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost: return !from_device && !to_device;
    case cudaMemcpyHostToDevice: return !from_device && to_device;
    case cudaMemcpyDeviceToHost: return from_device && !to_device;
    case cudaMemcpyDeviceToDevice: return from_device && to_device;
    case cudaMemcpyDefault: return true;
  }
  return false;
}

bool overlap(const std::byte* a, const std::byte* b, std::size_t size) {
  return a < b + size && b < a + size;
}

// What a kernel touches, where its bytes are. Nothing if the kernel would fault.
std::optional<std::vector<Access>> translated(Runtime& runtime, const Gpu& gpu,
                                              std::span<const Access> accesses) {
  std::vector<Access> result;
  for (const Access& access : accesses) {
    if (access.size == Bytes{}) continue;
    try {
      const End end = end_of(runtime, gpu, access.data, access.size,
                             access.writes ? "what the kernel writes" : "what the kernel reads");
      if (end.pageable) return std::nullopt;
      result.push_back({end.bytes, access.size, access.writes});
    } catch (const Refused&) {
      return std::nullopt;
    }
  }
  return result;
}

}  // namespace

cudaError_t launch(cudaStream_t handle, std::span<const Access> accesses, HostFunction function) {
  return cuda_call("cudaLaunchKernel", [&](Runtime& runtime, Runtime::Lock&) {
    const auto stream = runtime.stream_here(handle);
    const auto touched = translated(runtime, *stream->gpu, accesses);
    if (touched) {
      runtime.enqueue(*stream, "kernel", std::move(function), *touched);
    } else {
      runtime.enqueue(*stream, "kernel",
                      [&runtime, gpu = stream->gpu] {
                        const Runtime::Lock lock(runtime.mutex());
                        runtime.lose(*gpu, cudaErrorIllegalAddress);
                      },
                      {});
    }
    return cudaSuccess;
  });
}

}  // namespace strata::test::standin

using strata::Access;
using strata::Bytes;
using namespace strata::test::standin;  // NOLINT(google-build-using-namespace): extern "C" below

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  return cuda_call("cudaMemcpyAsync", [=](Runtime& runtime, Runtime::Lock& lock) {
    const auto stream = runtime.stream(handle);
    if (count == 0) return cudaSuccess;
    if (dst == nullptr || src == nullptr) return cudaErrorInvalidValue;
    Gpu& gpu = *stream->gpu;
    const End from = end_of(runtime, gpu, src, Bytes{count}, "the source");
    const End to = end_of(runtime, gpu, dst, Bytes{count}, "the destination");
    if (!matches(kind, from.on_device, to.on_device)) {
      runtime.refuse(cudaErrorInvalidValue, "kind {} does not fit an {}", static_cast<int>(kind),
                     name_of(from.on_device, to.on_device));
    }
    if (overlap(from.bytes, to.bytes, count)) {
      runtime.refuse(cudaErrorInvalidValue, "source and destination overlap");
    }
    if (!from.on_device && to.on_device) runtime.copied.to_device += Bytes{count};
    if (from.on_device && !to.on_device) runtime.copied.to_host += Bytes{count};
    const Access accesses[] = {{from.bytes, Bytes{count}, false}, {to.bytes, Bytes{count}, true}};
    runtime.enqueue(
        *stream, name_of(from.on_device, to.on_device),
        [=] { std::memcpy(to.bytes, from.bytes, count); }, accesses);
    if (!from.pageable && !to.pageable) return cudaSuccess;
    // Pageable memory is free again when the call returns.
    const strata::Event copied = Runtime::tail_of(*stream);
    lock.unlock();
    gpu.device.synchronize(copied);
    return gpu.lost.load();
  });
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t count, cudaStream_t handle) {
  return cuda_call("cudaMemsetAsync", [=](Runtime& runtime, Runtime::Lock&) {
    const auto stream = runtime.stream_here(handle);
    if (count == 0) return cudaSuccess;
    std::byte* const bytes =
        runtime.device_range(*stream->gpu, address, Bytes{count}, "the destination");
    const Access access{bytes, Bytes{count}, true};
    runtime.enqueue(*stream, "set", [=] { std::memset(bytes, value, count); }, {&access, 1});
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return cuda_call("cudaLaunchHostFunc", [=](Runtime& runtime, Runtime::Lock&) {
    if (function == nullptr) return cudaErrorInvalidValue;
    runtime.enqueue_host_call(*runtime.stream(handle), [=] { function(data); });
    return cudaSuccess;
  });
}
