#include "cuda/cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "cuda/check.hpp"
#include "cuda/kernels.hpp"
#include "ports/element_accesses.hpp"

namespace strata {

using cuda::check;
using cuda::enter;
using cuda::error_of;

namespace {

// The oldest GPUs that kernels are built for (STRATA_CUDA_ARCHITECTURES).
constexpr int kLeastCapability = 8;

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Error old_driver() {
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  if (driver == 0) {
    return Error(ErrorCode::not_supported,
                 fmt::format("no NVIDIA driver is installed: install one that supports CUDA {}, or "
                             "set device.kind to \"cpu\"",
                             version_text(runtime)));
  }
  return Error(ErrorCode::not_supported,
               fmt::format("the NVIDIA driver supports CUDA {} at most and this build needs CUDA "
                           "{}: install a newer driver, or build with an older toolkit",
                           version_text(driver), version_text(runtime)));
}

cudaMemcpyKind kind_of(CopyKind kind) {
  switch (kind) {
    case CopyKind::host_to_device: return cudaMemcpyHostToDevice;
    case CopyKind::device_to_host: return cudaMemcpyDeviceToHost;
    case CopyKind::device_to_device: return cudaMemcpyDeviceToDevice;
  }
  return cudaMemcpyDefault;
}

}  // namespace

int CudaDevice::count() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorInsufficientDriver) {
    [[maybe_unused]] const cudaError_t taken = cudaGetLastError();
    throw old_driver();
  }
  if (result == cudaErrorNoDevice || (result == cudaSuccess && count == 0)) {
    [[maybe_unused]] const cudaError_t taken = cudaGetLastError();
    throw Error(ErrorCode::not_supported,
                "no GPU is visible: see what nvidia-smi lists and CUDA_VISIBLE_DEVICES allows, or "
                "set device.kind to \"cpu\"");
  }
  check(result, "cudaGetDeviceCount");
  return count;
}

CudaDevice::CudaDevice(const Options& options)
    : index_(options.index), events_(options.index, failure_) {
  const int gpus = count();
  if (index_ < 0 || index_ >= gpus) {
    throw Error(ErrorCode::config,
                fmt::format("GPU {} does not exist: {} visible, numbered from 0", index_,
                            gpus == 1 ? "1 is" : fmt::format("{} are", gpus)));
  }
  describe_gpu();
  check(enter(index_), "cudaSetDevice");
  check(cuda::load_kernels(), "loading the kernels");
  arena_ = std::make_unique<cuda::Arena>(index_, options.arena, options.source);
}

void CudaDevice::describe_gpu() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  if (properties.major < kLeastCapability) {
    throw Error(
        ErrorCode::not_supported,
        fmt::format("GPU {} ({}) has compute capability {}.{} and Strata needs {}.0: choose "
                    "another by CUDA_VISIBLE_DEVICES, or set device.kind to \"cpu\"",
                    index_, properties.name, properties.major, properties.minor, kLeastCapability));
  }
  name_ = fmt::format("cuda:{} ({})", index_, properties.name);
  static_assert(sizeof(properties.uuid.bytes) == sizeof(uuid_));
  std::memcpy(uuid_.data(), properties.uuid.bytes, uuid_.size());
}

CudaDevice::~CudaDevice() { close(); }

StreamId CudaDevice::create_stream(std::string_view name) {
  check(enter(index_), "cudaSetDevice");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return add_stream(stream, true, name);
}

StreamId CudaDevice::adopt_stream(cudaStream_t stream, std::string_view name) {
  return add_stream(stream, false, name);
}

StreamId CudaDevice::add_stream(cudaStream_t handle, bool owned, std::string_view name) {
  const std::lock_guard lock(mutex_);
  STRATA_ASSERT(!closed_, fmt::format("stream '{}' created on closed device '{}'", name, name_));
  const StreamId id{static_cast<std::uint32_t>(streams_.size())};
  streams_.emplace_back(index_, handle, owned, name, failure_);
  events_.add_stream(handle);
  return id;
}

CudaDevice::Stream& CudaDevice::find(StreamId stream) const {
  const std::lock_guard lock(mutex_);
  STRATA_ASSERT(stream.value < streams_.size(),
                fmt::format("device '{}' has no stream {}", name_, stream.value));
  return streams_[stream.value];
}

bool CudaDevice::succeeded(cudaError_t result, std::string_view what, const Stream& stream) {
  if (result == cudaSuccess) return true;
  failure_.record(
      error_of(result, fmt::format("{} on stream '{}' of {}", what, stream.name, name_)));
  return false;
}

template <class Call>
void CudaDevice::enqueue(StreamId id, std::string_view what, Call&& call) {
  Stream& stream = find(id);
  if (failure_.is_set() || !succeeded(enter(index_), "cudaSetDevice", stream)) return;
  succeeded(stream.timer.time([&] { return call(stream.handle); }), what, stream);
}

void CudaDevice::copy(StreamId id, void* dst, const void* src, Bytes size, CopyKind kind) {
  const Stream& stream = find(id);
  if (kind != CopyKind::host_to_device) require_in_arena(src, size, "source of a copy");
  if (kind != CopyKind::device_to_host) require_in_arena(dst, size, "destination of a copy");
  if (kind == CopyKind::host_to_device) require_pinned(src, size, stream);
  if (kind == CopyKind::device_to_host) require_pinned(dst, size, stream);
  if (size == Bytes{}) return;
  enqueue(id, "cudaMemcpyAsync", [&](cudaStream_t handle) {
    return cudaMemcpyAsync(dst, src, size.value, kind_of(kind), handle);
  });
}

void CudaDevice::zero(StreamId id, void* dst, Bytes size) {
  require_in_arena(dst, size, "destination of zero()");
  if (size == Bytes{}) return;
  enqueue(id, "cudaMemsetAsync",
          [&](cudaStream_t handle) { return cudaMemsetAsync(dst, 0, size.value, handle); });
}

void CudaDevice::element_op(StreamId id, const ElementOp& op) {
  if (const auto* update = std::get_if<UpdateOp>(&op)) check(*update);
  for_each_access(op, [&](const Access& access) {
    require_in_arena(access.data, access.size, "operand of an element op");
  });
  enqueue(id, "launch of a kernel",
          [&](cudaStream_t handle) { return cuda::launch_element_op(op, handle); });
}

void CudaDevice::launch(StreamId id, HostFunction function, std::span<const Access>) {
  STRATA_ASSERT(function != nullptr, "launch of an empty function");
  Stream& stream = find(id);
  if (failure_.is_set() || !succeeded(enter(index_), "cudaSetDevice", stream)) return;
  cuda::HostCalls::Call& call = host_calls_.prepare(std::move(function), stream.host_ns);
  const cudaError_t result = cudaLaunchHostFunc(stream.handle, &cuda::HostCalls::run, &call);
  if (!succeeded(result, "cudaLaunchHostFunc", stream)) host_calls_.cancel(call);
}

void CudaDevice::synchronize(Event event) {
  events_.synchronize(event);
  if (!failure_.is_set()) return;
  host_calls_.wait_until_idle();  // who is told of the failure may free what they use
  failure_.throw_if_set();
}

void CudaDevice::notify(Event event, HostFunction function) {
  if (events_.done(event)) {
    function();
    return;
  }
  Stream& stream = find(events_.stream_of(event));
  const std::lock_guard lock(mutex_);
  STRATA_ASSERT(!closed_, "notify() on a closed device of an event that has not fired");
  if (!stream.watcher) stream.watcher = std::make_unique<cuda::EventWatcher>(events_);
  stream.watcher->notify(event, std::move(function));
}

void CudaDevice::register_host(std::span<std::byte> memory) {
  check(enter(index_), "cudaSetDevice");
  const cudaError_t result =
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (result == cudaErrorMemoryAllocation) {
    throw error_of(result, fmt::format("cudaHostRegister of {} bytes (the system limits pinned "
                                       "memory: lower budgets.host)",
                                       memory.size()));
  }
  check(result, "cudaHostRegister");
  const std::lock_guard lock(mutex_);
  registered_.add(memory);
}

void CudaDevice::unregister_host(std::span<std::byte> memory) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;  // close() let go of everything
    registered_.remove(memory);
  }
  // Tried in any case: it is the only way to give the memory back.
  [[maybe_unused]] const cudaError_t entered = enter(index_);
  const cudaError_t result = cudaHostUnregister(memory.data());
  if (result != cudaSuccess) failure_.record(error_of(result, "cudaHostUnregister"));
}

double CudaDevice::busy_seconds(StreamId id) const {
  constexpr double kNanosecond = 1e-9;
  Stream& stream = find(id);
  return stream.timer.seconds() + static_cast<double>(stream.host_ns) * kNanosecond;
}

void CudaDevice::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  for (Stream& stream : streams_) {
    succeeded(enter(index_), "cudaSetDevice", stream);
    succeeded(cudaStreamSynchronize(stream.handle), "cudaStreamSynchronize", stream);
  }
  // A stream that has failed counts as idle, also while one of its host functions runs.
  host_calls_.wait_until_idle();
  for (Stream& stream : streams_) stream.watcher.reset();
  events_.close();
  for (Stream& stream : streams_) {
    stream.timer.close();
    if (stream.owned) succeeded(cudaStreamDestroy(stream.handle), "cudaStreamDestroy", stream);
  }
  for (const auto& [data, size] : registered_.all()) {
    const cudaError_t result = cudaHostUnregister(const_cast<std::byte*>(data));
    if (result != cudaSuccess) failure_.record(error_of(result, "cudaHostUnregister"));
  }
  registered_.clear();
}

void CudaDevice::require_in_arena(const void* data, Bytes size, std::string_view what) const {
  strata::require_in_arena(arena_->bytes(), name_, data, size, what);
}

// CUDA would copy pageable memory through a buffer of its own while the caller waits.
void CudaDevice::require_pinned(const void* data, Bytes size, const Stream& stream) const {
  if (size == Bytes{}) return;
  {
    const std::lock_guard lock(mutex_);
    if (registered_.contain(data, size)) return;
  }
  // Pinned by somebody else, cudaMallocHost() say.
  cudaPointerAttributes attributes{};
  cudaError_t result = enter(index_);
  if (result == cudaSuccess) result = cudaPointerGetAttributes(&attributes, data);
  if (result == cudaSuccess && attributes.type == cudaMemoryTypeHost) return;
  [[maybe_unused]] const cudaError_t taken = cudaGetLastError();
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a copy on stream '{}' uses host memory ({} + {} bytes) that is not "
                          "pinned: register_host() it, or take it from Session::scratch()",
                          stream.name, data, size.value));
}

}  // namespace strata
