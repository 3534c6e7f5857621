#include "support/standin/runtime.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "support/standin/nccl.hpp"

namespace strata::test::standin {
namespace {

std::unique_ptr<Runtime>& owner() {
  static std::unique_ptr<Runtime> runtime;
  return runtime;
}

std::atomic<Runtime*> current_pointer{nullptr};

Runtime& required_run() {
  Runtime* const runtime = current_run();
  STRATA_ASSERT(runtime != nullptr, "standin::configure() comes first");
  return *runtime;
}

// Marks the thread as inside work, where no call is allowed.
class InWork {
 public:
  InWork() { thread_state().in_work = true; }
  ~InWork() { thread_state().in_work = false; }
  InWork(const InWork&) = delete;
  InWork& operator=(const InWork&) = delete;
};

template <class T, class Handle>
std::shared_ptr<T> find(Runtime& runtime, const HandleTable<T, Handle>& table, Handle handle) {
  std::shared_ptr<T> object = table.find(handle);
  if (object == nullptr) {
    runtime.refuse(cudaErrorInvalidResourceHandle, "{:#x} is no {}, or was destroyed before",
                   reinterpret_cast<std::uintptr_t>(handle), table.kind());
  }
  Runtime::require_alive(*object->gpu);
  return object;
}

}  // namespace

Gpu::Gpu(int number, const Options& options)
    : index(number),
      reservation(options.memory),
      device({.arena = options.memory,
              .name = fmt::format("gpu{}", number),
              .seed = options.seed + static_cast<std::uint64_t>(number),
              .policy = options.policy,
              .patience = options.patience,
              .check_leases = false}),
      to_arena(reinterpret_cast<std::intptr_t>(device.arena().data()) -
               reinterpret_cast<std::intptr_t>(reservation.begin())),
      allocator(options.memory) {}

Runtime::Runtime(const Options& given, std::uint64_t number)
    : options(given), run(number), nccl(std::make_unique<Nccl>(given.seed)) {
  if (options.count_error != cudaSuccess) return;
  for (int i = 0; i < options.devices; ++i) gpus_.push_back(std::make_unique<Gpu>(i, options));
}

Runtime::~Runtime() { end(); }

void Runtime::violation(std::string_view message) {
  const char* const call = thread_state().call;
  const std::lock_guard lock(violations_mutex_);
  violations_.push_back(*call == '\0' ? std::string(message)
                                      : fmt::format("{}: {}", call, message));
}

std::vector<std::string> Runtime::violations() const {
  std::vector<std::string> all;
  {
    const std::lock_guard lock(violations_mutex_);
    all = violations_;
  }
  for (const auto& gpu : gpus_) {
    for (const std::string& message : gpu->device.violations()) {
      all.push_back(fmt::format("device {}: {}", gpu->index, message));
    }
  }
  return all;
}

void Runtime::inherit(std::vector<std::string> earlier) {
  const std::lock_guard lock(violations_mutex_);
  for (std::string& message : earlier) {
    violations_.push_back(fmt::format("an unfinished run before: {}", message));
  }
}

void Runtime::end() {
  if (ended_) return;
  ended_ = true;
  thread_state().call = "";
  {
    const std::lock_guard lock(mutex_);
    tell_leaks();
    ending = true;
    changed.notify_all();
  }
  for (const auto& gpu : gpus_) gpu->device.close();
}

void Runtime::tell_leaks() {
  for (const auto& [handle, stream] : streams.all()) {
    if (stream->excused) continue;
    violation(fmt::format("leak: stream {} of device {}", stream->number, stream->gpu->index));
  }
  for (const auto& [handle, event] : events.all()) {
    if (event->excused) continue;
    violation(fmt::format("leak: event {} of device {}", event->number, event->gpu->index));
  }
  for (const auto& [address, allocation] : allocations) {
    if (allocation.excused) continue;
    violation(fmt::format("leak: allocation {} of {} bytes on device {}", allocation.number,
                          allocation.size.value, allocation.gpu->index));
  }
  for (const auto& [address, registration] : registrations) {
    if (registration.excused) continue;
    violation(fmt::format("leak: registration {} of {} bytes of host memory", registration.number,
                          registration.size.value));
  }
  nccl->tell_leaks(*this);
}

Gpu* Runtime::gpu_at(const void* address) const {
  const auto found = std::find_if(gpus_.begin(), gpus_.end(), [&](const auto& gpu) {
    return gpu->reservation.contains(address);
  });
  return found == gpus_.end() ? nullptr : found->get();
}

void* Runtime::host_address(const void* address) const {
  Gpu* const gpu = gpu_at(address);
  void* const plain = const_cast<void*>(address);
  if (gpu == nullptr) return plain;
  return gpu->device.arena().data() + (static_cast<std::byte*>(plain) - gpu->reservation.begin());
}

Gpu& Runtime::current_gpu() const { return gpu(thread_state().device); }

void Runtime::lose(Gpu& gpu, cudaError_t error) {
  cudaError_t none = cudaSuccess;
  gpu.lost.compare_exchange_strong(none, error);
  changed.notify_all();
}

void Runtime::require_alive(const Gpu& gpu) {
  const cudaError_t lost = gpu.lost;
  if (lost != cudaSuccess) throw Refused{lost};
}

std::shared_ptr<Stream> Runtime::stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    refuse(cudaErrorNotSupported, "the default stream is not stood in; create one");
  }
  return find(*this, streams, handle);
}

std::shared_ptr<CudaEvent> Runtime::event(cudaEvent_t handle) {
  return find(*this, events, handle);
}

std::shared_ptr<Stream> Runtime::stream_here(cudaStream_t handle) {
  auto found = stream(handle);
  const int here = thread_state().device;
  if (found->gpu->index != here) {
    refuse(cudaErrorInvalidResourceHandle,
           "stream {} belongs to device {}, and the current device is {}", found->number,
           found->gpu->index, here);
  }
  return found;
}

HostFunction Runtime::guarded(Gpu& gpu, HostFunction function) {
  return [this, &gpu, fault = faults.next_work(), function = std::move(function)] {
    if (gpu.lost != cudaSuccess) return;
    if (fault) {
      const Lock lock(mutex_);
      lose(gpu, *fault);
      return;
    }
    const InWork here;
    function();
  };
}

void Runtime::enqueue(Stream& stream, std::string_view kind, HostFunction function,
                      std::span<const Access> accesses) {
  stream.gpu->device.launch_as(kind, stream.id, guarded(*stream.gpu, std::move(function)),
                               accesses);
  stream.stale = true;
}

void Runtime::enqueue_host_call(Stream& stream, HostFunction function) {
  const auto one_at_a_time = [&turn = stream.gpu->host_function, function = std::move(function)] {
    const std::lock_guard lock(turn);
    function();
  };
  stream.gpu->device.call_host(stream.id, guarded(*stream.gpu, one_at_a_time));
  stream.stale = true;
}

Event Runtime::tail_of(Stream& stream) {
  if (stream.stale) stream.tail = stream.gpu->device.record(stream.id);
  stream.stale = false;
  return stream.tail;
}

void Runtime::synchronize(Gpu& gpu, Lock& lock) {
  std::vector<Event> tails;
  for (const auto& [handle, stream] : streams.all()) {
    if (stream->gpu == &gpu) tails.push_back(tail_of(*stream));
  }
  for (const Gpu::Retired& retired : gpu.retired) tails.push_back(retired.event);
  lock.unlock();
  for (const Event& tail : tails) {
    if (tail.recorded()) gpu.device.synchronize(tail);
  }
  lock.lock();
}

Runtime* current_run() { return current_pointer.load(std::memory_order_acquire); }

ThreadState& thread_state() {
  thread_local ThreadState state;
  const Runtime* const runtime = current_run();
  const std::uint64_t run = runtime == nullptr ? 0 : runtime->run;
  if (state.run != run) {
    state = {};
    state.run = run;
  }
  return state;
}

cudaError_t begin_cuda_call(Runtime& runtime, const char* name, Needs needs) {
  ThreadState& thread = thread_state();
  const auto planned = runtime.faults.next_cuda(name);
  if (thread.in_work) {
    runtime.violation(fmt::format("{} called by a function that runs on a stream", name));
    return cudaErrorNotPermitted;
  }
  thread.call = name;
  const bool has_device = runtime.gpu_count() != 0;
  if (needs != Needs::nothing) {
    if (runtime.options.count_error != cudaSuccess) return runtime.options.count_error;
    if (!has_device) return cudaErrorNoDevice;
  }
  if (needs == Needs::a_device_that_works && runtime.current_gpu().lost != cudaSuccess) {
    return runtime.current_gpu().lost;
  }
  if (!planned) return cudaSuccess;
  if (planned->sticky && has_device) runtime.lose(runtime.current_gpu(), planned->error);
  return planned->error;
}

cudaError_t end_cuda_call(cudaError_t result) {
  ThreadState& thread = thread_state();
  if (!thread.in_work) thread.call = "";
  if (result != cudaSuccess) thread.last_error = result;
  return result;
}

void configure(const Options& options) {
  static std::uint64_t runs = 0;
  std::vector<std::string> earlier = finish();
  owner() = std::make_unique<Runtime>(options, ++runs);
  owner()->inherit(std::move(earlier));
  current_pointer.store(owner().get(), std::memory_order_release);
}

std::vector<std::string> finish() {
  if (owner() == nullptr) return {};
  // Kernel bodies translate addresses until the last of them has run.
  owner()->end();
  std::vector<std::string> all = owner()->violations();
  current_pointer.store(nullptr, std::memory_order_release);
  owner().reset();
  return all;
}

std::vector<std::string> violations() { return required_run().violations(); }

std::map<std::string, std::uint64_t> calls() {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  return runtime.faults.calls();
}

void fail(Failure failure) {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  runtime.faults.add(std::move(failure));
}

void fail(NcclFailure failure) {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  runtime.faults.add(std::move(failure));
}

void fail_async(std::uint64_t k, cudaError_t error) {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  runtime.faults.add_async(k, error);
}

std::uint64_t works() {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  return runtime.faults.works();
}

CopiedBytes copied() {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  return runtime.copied;
}

void ignore_wait(std::uint64_t n) {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  runtime.faults.ignore_wait(n);
}

std::uint64_t waits() {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  return runtime.faults.waits();
}

void break_nccl(int rank, ncclResult_t error) {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  runtime.nccl->break_rank(rank, error);
}

void hold_enqueues(int rank) {
  Runtime& runtime = required_run();
  const Runtime::Lock lock(runtime.mutex());
  runtime.nccl->hold_rank(rank);
}

void* host_address(const void* address) {
  const Runtime* const runtime = current_run();
  return runtime == nullptr ? const_cast<void*>(address) : runtime->host_address(address);
}

void host_reads(const void* data, Bytes size) {
  Runtime& runtime = required_run();
  for (std::size_t i = 0; i < runtime.gpu_count(); ++i) {
    runtime.gpu(static_cast<int>(i)).device.host_reads(data, size);
  }
}

void host_writes(void* data, Bytes size) {
  Runtime& runtime = required_run();
  for (std::size_t i = 0; i < runtime.gpu_count(); ++i) {
    runtime.gpu(static_cast<int>(i)).device.host_writes(data, size);
  }
}

}  // namespace strata::test::standin
