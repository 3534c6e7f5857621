// The entry points that hand out, register and describe memory.
#include "support/standin/memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/check.hpp"
#include "support/standin/nccl.hpp"
#include "support/standin/runtime.hpp"

namespace strata::test::standin {
namespace {

// NaN in fp32, bf16 and fp16.
constexpr int kGarbage = 0xFF;

void* mapped(Bytes size) {
  void* const begin =
      ::mmap(nullptr, size.value, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  STRATA_ASSERT(begin != MAP_FAILED, fmt::format("mmap of {} bytes: {}", size.value,
                                                 std::strerror(errno)));  // NOLINT: one thread
  return begin;
}

// The device address of a new allocation; null if there is no room.
std::byte* allocate(Runtime& runtime, Runtime::Lock& lock, Gpu& gpu, Bytes size) {
  Runtime::reclaim(gpu);
  std::optional<Bytes> offset = gpu.allocator.allocate(size);
  if (!offset && !gpu.retired.empty()) {
    runtime.synchronize(gpu, lock);
    Runtime::reclaim(gpu);
    offset = gpu.allocator.allocate(size);
  }
  if (!offset) return nullptr;
  std::byte* const address = gpu.reservation.begin() + offset->value;
  runtime.allocations[reinterpret_cast<std::uintptr_t>(address)] = {runtime.next_allocation++, &gpu,
                                                                    size};
  return address;
}

void excuse_allocation(Runtime& runtime, const void* address) {
  const auto found = runtime.allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found != runtime.allocations.end()) found->second.excused = true;
}

// The allocation that begins at `address`, of a device that works, and of no registration.
Allocation& freeable(Runtime& runtime, const void* address) {
  const auto found = runtime.allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == runtime.allocations.end()) {
    runtime.refuse(cudaErrorInvalidValue, "{} is no allocation, or was freed before", address);
  }
  Runtime::require_alive(*found->second.gpu);
  if (runtime.nccl->is_registered(address, found->second.size)) {
    runtime.violation(
        fmt::format("allocation {} is still registered with a communicator", found->second.number));
  }
  return found->second;
}

Bytes offset_of(const Gpu& gpu, const void* address) {
  return Bytes{
      static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - gpu.reservation.begin())};
}

void fill_with_garbage(const Runtime& runtime, void* address, Bytes size) {
  std::memset(runtime.host_address(address), kGarbage, size.value);
}

}  // namespace

Reservation::Reservation(Bytes size) : size_(size), begin_(static_cast<std::byte*>(mapped(size))) {}

Reservation::~Reservation() { ::munmap(begin_, size_.value); }

std::optional<Bytes> Allocator::allocate(Bytes size) {
  const Bytes rounded = round_up(size, kAlignment);
  Bytes gap;
  for (const auto& [offset, length] : ranges_) {
    if (offset - gap >= rounded) break;
    gap = offset + length;
  }
  if (gap + rounded > size_ || rounded < size) return std::nullopt;
  ranges_.emplace(gap, rounded);
  used_ += rounded;
  return gap;
}

void Allocator::free(Bytes offset) {
  const auto found = ranges_.find(offset);
  used_ -= found->second;
  ranges_.erase(found);
}

const std::pair<const std::uintptr_t, Allocation>* Runtime::allocation_at(
    const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto found = allocations.upper_bound(at);
  if (found == allocations.begin()) return nullptr;
  --found;
  return at < found->first + found->second.size.value ? &*found : nullptr;
}

const std::pair<const std::uintptr_t, Registration>* Runtime::registration_at(
    const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto found = registrations.upper_bound(at);
  if (found == registrations.begin()) return nullptr;
  --found;
  return at < found->first + found->second.size.value ? &*found : nullptr;
}

std::byte* Runtime::device_range(const Gpu& gpu, const void* address, Bytes size,
                                 std::string_view what, cudaError_t error) {
  const auto* found = allocation_at(address);
  if (found == nullptr) refuse(error, "{} {} is not in an allocation", what, address);
  if (found->second.gpu != &gpu) {
    refuse(error, "{} {} is memory of device {}, used on device {}", what, address,
           found->second.gpu->index, gpu.index);
  }
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(address) - found->first;
  if (size > found->second.size - Bytes{offset}) {
    refuse(error, "{} runs past its allocation: {} bytes at offset {} of {}", what, size.value,
           offset, found->second.size.value);
  }
  return static_cast<std::byte*>(host_address(address));
}

void Runtime::reclaim(Gpu& gpu) {
  std::erase_if(gpu.retired, [&](const Gpu::Retired& retired) {
    if (!gpu.device.done(retired.event)) return false;
    gpu.allocator.free(retired.offset);
    return true;
  });
}

}  // namespace strata::test::standin

using strata::Access;
using strata::Bytes;
using namespace strata::test::standin;  // NOLINT(google-build-using-namespace): extern "C" below

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return cuda_call("cudaMemGetInfo", [=](Runtime& runtime, Runtime::Lock&) {
    Gpu& gpu = runtime.current_gpu();
    Runtime::reclaim(gpu);
    *total_bytes = runtime.options.memory.value;
    *free_bytes = (runtime.options.memory - gpu.allocator.used()).value;
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** address, size_t size) {
  return cuda_call("cudaMalloc", [=](Runtime& runtime, Runtime::Lock& lock) {
    if (address == nullptr) return cudaErrorInvalidValue;
    *address = nullptr;
    if (size == 0) return cudaSuccess;
    *address = allocate(runtime, lock, runtime.current_gpu(), Bytes{size});
    if (*address == nullptr) return cudaErrorMemoryAllocation;
    fill_with_garbage(runtime, *address, Bytes{size});
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* address) {
  return cuda_call(
      "cudaFree",
      [=](Runtime& runtime, Runtime::Lock& lock) {
        if (address == nullptr) return cudaSuccess;
        Gpu& gpu = *freeable(runtime, address).gpu;
        runtime.synchronize(gpu, lock);
        Runtime::require_alive(gpu);
        runtime.allocations.erase(reinterpret_cast<std::uintptr_t>(address));
        gpu.allocator.free(offset_of(gpu, address));
        return cudaSuccess;
      },
      [=](Runtime& runtime) { excuse_allocation(runtime, address); });
}

cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t handle) {
  return cuda_call("cudaMallocAsync", [=](Runtime& runtime, Runtime::Lock& lock) {
    if (address == nullptr || size == 0) return cudaErrorInvalidValue;
    const auto stream = runtime.stream(handle);
    void* const fresh = allocate(runtime, lock, *stream->gpu, Bytes{size});
    if (fresh == nullptr) return cudaErrorMemoryAllocation;
    *address = fresh;
    const Access access{runtime.host_address(fresh), Bytes{size}, true};
    runtime.enqueue(*stream, "allocation",
                    [=, &runtime] { fill_with_garbage(runtime, fresh, Bytes{size}); },
                    {&access, 1});
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  return cuda_call(
      "cudaFreeAsync",
      [=](Runtime& runtime, Runtime::Lock&) {
        const auto stream = runtime.stream(handle);
        if (address == nullptr) return cudaSuccess;
        const Allocation& allocation = freeable(runtime, address);
        Gpu& gpu = *stream->gpu;
        if (allocation.gpu != &gpu) {
          runtime.refuse(cudaErrorInvalidValue, "allocation {} is memory of device {}",
                         allocation.number, allocation.gpu->index);
        }
        const Bytes size = allocation.size;
        const Access access{runtime.host_address(address), size, true};
        runtime.enqueue(*stream, "free",
                        [=, &runtime] { fill_with_garbage(runtime, address, size); }, {&access, 1});
        runtime.allocations.erase(reinterpret_cast<std::uintptr_t>(address));
        gpu.retired.push_back({offset_of(gpu, address), Runtime::tail_of(*stream)});
        return cudaSuccess;
      },
      [=](Runtime& runtime) { excuse_allocation(runtime, address); });
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned int flags) {
  return cuda_call("cudaHostRegister", [=](Runtime& runtime, Runtime::Lock&) {
    constexpr unsigned kFlags = cudaHostRegisterPortable | cudaHostRegisterMapped |
                                cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    if (address == nullptr || size == 0 || (flags & ~kFlags) != 0) return cudaErrorInvalidValue;
    if (runtime.gpu_at(address) != nullptr) {
      runtime.refuse(cudaErrorInvalidValue, "{} is device memory", address);
    }
    const auto range = range_of(address, size);
    const auto next = runtime.registrations.lower_bound(range.begin);
    const bool before = runtime.registration_at(address) != nullptr;
    if (before || (next != runtime.registrations.end() && next->first < range.end)) {
      runtime.refuse(
          cudaErrorHostMemoryAlreadyRegistered, "{} + {} bytes overlaps registration {}", address,
          size, before ? runtime.registration_at(address)->second.number : next->second.number);
    }
    runtime.registrations[range.begin] = {runtime.next_registration++, thread_state().device,
                                          Bytes{size}};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return cuda_call(
      "cudaHostUnregister",
      [=](Runtime& runtime, Runtime::Lock&) {
        const auto found = runtime.registrations.find(at);
        if (found == runtime.registrations.end()) {
          runtime.refuse(cudaErrorHostMemoryNotRegistered, "{} is not registered", address);
        }
        for (std::size_t i = 0; i < runtime.gpu_count(); ++i) {
          runtime.gpu(static_cast<int>(i))
              .device.host_gives_up("cudaHostUnregister", address, found->second.size);
        }
        runtime.registrations.erase(found);
        return cudaSuccess;
      },
      [=](Runtime& runtime) {
        const auto found = runtime.registrations.find(at);
        if (found != runtime.registrations.end()) found->second.excused = true;
      });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return cuda_call("cudaPointerGetAttributes", [=](Runtime& runtime, Runtime::Lock&) {
    if (attributes == nullptr || address == nullptr) return cudaErrorInvalidValue;
    *attributes = {};
    void* const plain = const_cast<void*>(address);
    if (const auto* allocation = runtime.allocation_at(address)) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = allocation->second.gpu->index;
      attributes->devicePointer = plain;
    } else if (const auto* registration = runtime.registration_at(address)) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = registration->second.device;
      attributes->devicePointer = plain;
      attributes->hostPointer = plain;
    } else {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = plain;
    }
    return cudaSuccess;
  });
}
