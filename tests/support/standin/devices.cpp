// The entry points that choose and describe devices, and those that tell errors.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "support/standin/runtime.hpp"

namespace strata::test::standin {
namespace {

bool has_device(const Runtime& runtime, int device) {
  return device >= 0 && device < runtime.options.devices;
}

std::string bus_id(int device) { return fmt::format("0000:{:02X}:00.0", device + 1); }

constexpr int kMultiprocessors = 132;
constexpr int kCopyEngines = 3;
constexpr int kWarpSize = 32;
constexpr int kMaxThreadsPerBlock = 1024;

std::optional<int> attribute(const Runtime& runtime, cudaDeviceAttr which, int device) {
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: return runtime.options.compute_major;
    case cudaDevAttrComputeCapabilityMinor: return runtime.options.compute_minor;
    case cudaDevAttrMultiProcessorCount: return kMultiprocessors;
    case cudaDevAttrAsyncEngineCount: return kCopyEngines;
    case cudaDevAttrWarpSize: return kWarpSize;
    case cudaDevAttrMaxThreadsPerBlock: return kMaxThreadsPerBlock;
    case cudaDevAttrPciBusId: return device + 1;
    case cudaDevAttrComputeMode: return cudaComputeModeDefault;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCanMapHostMemory: return 1;
    case cudaDevAttrPciDomainId:
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrIntegrated:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrPageableMemoryAccess: return 0;
    default: return std::nullopt;
  }
}

void describe(const Runtime& runtime, int device, cudaDeviceProp& properties) {
  properties = {};
  fmt::format_to_n(properties.name, sizeof(properties.name) - 1, "Stand-in GPU");
  for (std::size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
    properties.uuid.bytes[i] = static_cast<char>(0x10 * (device + 1) + static_cast<int>(i));
  }
  properties.totalGlobalMem = runtime.options.memory.value;
  properties.major = runtime.options.compute_major;
  properties.minor = runtime.options.compute_minor;
  properties.multiProcessorCount = kMultiprocessors;
  properties.asyncEngineCount = kCopyEngines;
  properties.warpSize = kWarpSize;
  properties.maxThreadsPerBlock = kMaxThreadsPerBlock;
  properties.pciBusID = device + 1;
  properties.unifiedAddressing = 1;
  properties.concurrentKernels = 1;
  properties.canMapHostMemory = 1;
  properties.memoryPoolsSupported = 1;
  properties.hostRegisterSupported = 1;
  properties.canUseHostPointerForRegisteredMem = 1;
}

// cudaGetLastError and cudaPeekAtLastError, which tell an error and do not make one.
cudaError_t last_error(const char* name, bool take) noexcept {
  Runtime* const runtime = current_run();
  if (runtime == nullptr) return cudaErrorInitializationError;
  const Runtime::Lock lock(runtime->mutex());
  ThreadState& thread = thread_state();
  const cudaError_t refused = begin_cuda_call(*runtime, name, Needs::nothing);
  if (!thread.in_work) thread.call = "";
  if (refused != cudaSuccess) return refused;
  if (runtime->gpu_count() != 0 && runtime->current_gpu().lost != cudaSuccess) {
    return runtime->current_gpu().lost;
  }
  const cudaError_t told = thread.last_error;
  if (take) thread.last_error = cudaSuccess;
  return told;
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading", "driver shutting down"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch",
     "system has unsupported display driver / cuda driver combination"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* find_text(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& one) { return one.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

}  // namespace
}  // namespace strata::test::standin

using namespace strata::test::standin;  // NOLINT(google-build-using-namespace): extern "C" below

cudaError_t cudaGetDeviceCount(int* count) {
  if (count != nullptr) *count = 0;
  return cuda_call("cudaGetDeviceCount", [=](Runtime& runtime, Runtime::Lock&) {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = runtime.options.devices;
    return cudaSuccess;
  });
}

// A thread may leave a lost device for one that works.
cudaError_t cudaSetDevice(int device) {
  return cuda_call<Needs::a_device>("cudaSetDevice", [=](Runtime& runtime, Runtime::Lock&) {
    if (!has_device(runtime, device)) return cudaErrorInvalidDevice;
    Runtime::require_alive(runtime.gpu(device));
    thread_state().device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return cuda_call("cudaGetDevice", [=](Runtime&, Runtime::Lock&) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = thread_state().device;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return cuda_call<Needs::nothing>("cudaDriverGetVersion", [=](Runtime& runtime, Runtime::Lock&) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = runtime.options.driver_version;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return cuda_call<Needs::nothing>("cudaRuntimeGetVersion", [=](Runtime& runtime, Runtime::Lock&) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = runtime.options.runtime_version;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return cuda_call("cudaDeviceGetAttribute", [=](Runtime& runtime, Runtime::Lock&) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (!has_device(runtime, device)) return cudaErrorInvalidDevice;
    const auto known = attribute(runtime, which, device);
    if (!known) {
      runtime.refuse(cudaErrorInvalidValue, "attribute {} is not stood in",
                     static_cast<int>(which));
    }
    *value = *known;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return cuda_call("cudaGetDeviceProperties", [=](Runtime& runtime, Runtime::Lock&) {
    if (properties == nullptr) return cudaErrorInvalidValue;
    if (!has_device(runtime, device)) return cudaErrorInvalidDevice;
    describe(runtime, device, *properties);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  return cuda_call("cudaDeviceGetPCIBusId", [=](Runtime& runtime, Runtime::Lock&) {
    if (!has_device(runtime, device)) return cudaErrorInvalidDevice;
    const std::string id = bus_id(device);
    if (text == nullptr || size <= static_cast<int>(id.size())) return cudaErrorInvalidValue;
    std::memcpy(text, id.c_str(), id.size() + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError() { return last_error("cudaGetLastError", true); }
cudaError_t cudaPeekAtLastError() { return last_error("cudaPeekAtLastError", false); }

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const found = find_text(error);
  return found == nullptr ? "unrecognized error code" : found->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const found = find_text(error);
  return found == nullptr ? "unrecognized error code" : found->text;
}
