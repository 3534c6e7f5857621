// One run of the stand-in: its devices, and every stream, event, allocation, registration and
// communicator that the program under test holds. Handles are numbers that are never used twice,
// so a destroyed one is recognised. cuda_call() and nccl_call() frame each entry point: they count
// it, let planned failures happen, and turn Refused into the result.
//
// Thread: mutex() guards everything here unless said otherwise; entry points hold it except while
// they block. Work that runs on a stream may take it, so nobody waits for a stream with it held.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/adversarial_device.hpp"
#include "support/standin/faults.hpp"
#include "support/standin/handle_table.hpp"
#include "support/standin/memory.hpp"
#include "support/standin/standin.hpp"

namespace strata::test::standin {

class Nccl;

// A call that ends with an error. Caught by the frame of the entry point.
struct Refused {
  cudaError_t error;
};
struct NcclRefused {
  ncclResult_t error;
};

struct Gpu {
  Gpu(int number, const Options& options);

  const int index;
  const Reservation reservation;
  AdversarialDevice device;
  const std::ptrdiff_t to_arena;  // from a device address

  // Held by the host function that runs: a GPU may run those of several streams one at a time.
  std::mutex host_function;

  // The sticky error. Set under the mutex, read by any thread.
  std::atomic<cudaError_t> lost{cudaSuccess};

  // Freed in stream order; free again once the event has fired.
  struct Retired {
    Bytes offset;
    Event event;
  };
  Allocator allocator;
  std::deque<Retired> retired;
};

struct Stream {
  std::uint64_t number = 0;
  Gpu* gpu = nullptr;
  StreamId id;
  bool excused = false;  // a call that would have destroyed it failed
  bool destroyed = false;
  bool stale = false;  // something was enqueued after `tail`
  Event tail;          // not recorded: nothing was ever enqueued
};

struct CudaEvent {
  std::uint64_t number = 0;
  Gpu* gpu = nullptr;
  bool timing = false;
  bool excused = false;
  Event event;  // the latest record
  std::shared_ptr<std::atomic<std::int64_t>> fired_ns;
};

struct Allocation {
  std::uint64_t number = 0;
  Gpu* gpu = nullptr;
  Bytes size;
  bool excused = false;
};

struct Registration {
  std::uint64_t number = 0;
  int device = 0;
  Bytes size;
  bool excused = false;
};

// What CUDA and NCCL keep per thread.
struct ThreadState {
  std::uint64_t run = 0;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool in_work = false;  // inside a host function or a kernel
  const char* call = "";
  std::string nccl_error;
};

class Runtime {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Runtime(const Options& options, std::uint64_t run);
  ~Runtime();

  const Options options;
  const std::uint64_t run;

  std::mutex& mutex() { return mutex_; }
  // Notified when a collective, a communicator or a device changes.
  std::condition_variable changed;
  bool ending = false;

  Faults faults;
  CopiedBytes copied;
  HandleTable<Stream, cudaStream_t> streams{"stream", 1};
  HandleTable<CudaEvent, cudaEvent_t> events{"event", 2};
  std::map<std::uintptr_t, Allocation> allocations;      // by the first device address
  std::map<std::uintptr_t, Registration> registrations;  // by the first address
  std::uint64_t next_allocation = 1;
  std::uint64_t next_registration = 1;
  const std::unique_ptr<Nccl> nccl;

  // Any thread, with or without the mutex. The message gets the name of the thread's call.
  void violation(std::string_view message);
  std::vector<std::string> violations() const;
  // Told by the next violations() first.
  void inherit(std::vector<std::string> earlier);

  // Checks leaks, ends what hangs, and waits for all work. Takes the mutex. Idempotent.
  void end();

  // Device addresses of any device. Any thread, without the mutex.
  Gpu* gpu_at(const void* address) const;
  void* host_address(const void* address) const;

  Gpu& gpu(int index) const { return *gpus_.at(static_cast<std::size_t>(index)); }
  std::size_t gpu_count() const { return gpus_.size(); }
  Gpu& current_gpu() const;

  // The device fails every call from now on.
  void lose(Gpu& gpu, cudaError_t error);
  static void require_alive(const Gpu& gpu);

  // Refuse what is unknown or destroyed, and what belongs to a lost device.
  std::shared_ptr<Stream> stream(cudaStream_t handle);
  std::shared_ptr<CudaEvent> event(cudaEvent_t handle);
  // Refuses a stream of a device that is not the thread's.
  std::shared_ptr<Stream> stream_here(cudaStream_t handle);

  // A message that names the misuse, and the refusal.
  template <class... Args>
  [[noreturn]] void refuse(cudaError_t error, fmt::format_string<Args...> format, Args&&... args) {
    violation(fmt::format(format, std::forward<Args>(args)...));
    throw Refused{error};
  }

  // The bytes of [address, + size) in the arena. Refuses with `error` what is not inside one
  // allocation of `gpu`; `what` names the range.
  std::byte* device_range(const Gpu& gpu, const void* address, Bytes size, std::string_view what,
                          cudaError_t error = cudaErrorInvalidValue);
  // The allocation or registration around an address; null if there is none.
  const std::pair<const std::uintptr_t, Allocation>* allocation_at(const void* address) const;
  const std::pair<const std::uintptr_t, Registration>* registration_at(const void* address) const;

  // Puts one piece of work on a stream: counted, subject to fail_async(), and skipped once the
  // device is lost. `accesses` are in the arena or host memory. `function` runs without the mutex.
  void enqueue(Stream& stream, std::string_view kind, HostFunction function,
               std::span<const Access> accesses);
  // The same for a host function, through which the host learns what has finished.
  void enqueue_host_call(Stream& stream, HostFunction function);

  // An event behind all that is enqueued on `stream` now; not recorded if nothing ever was.
  static Event tail_of(Stream& stream);
  // Waits for everything on a device. Unlocks meanwhile.
  void synchronize(Gpu& gpu, Lock& lock);

  // Gives back what was freed in stream order and has been passed since.
  static void reclaim(Gpu& gpu);

 private:
  HostFunction guarded(Gpu& gpu, HostFunction function);
  void tell_leaks();

  std::mutex mutex_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  bool ended_ = false;

  mutable std::mutex violations_mutex_;
  std::vector<std::string> violations_;
};

// The run between configure() and finish(); null outside.
Runtime* current_run();
// Fresh at the first use in a run.
ThreadState& thread_state();

// Frame of a CUDA entry point: body(Runtime&, Lock&) returns cudaError_t. excuse(Runtime&) is
// called when the call fails, for functions that would have given something up.
struct NoExcuse {
  void operator()(Runtime&) const {}
};
// What a call cannot do without.
enum class Needs : std::uint8_t { nothing, a_device, a_device_that_works };
template <Needs Need = Needs::a_device_that_works, class Body, class Excuse = NoExcuse>
cudaError_t cuda_call(const char* name, Body&& body, Excuse&& excuse = {}) noexcept;

// What every entry point begins with: anything but cudaSuccess is its result.
cudaError_t begin_cuda_call(Runtime& runtime, const char* name, Needs needs);
cudaError_t end_cuda_call(cudaError_t result);

template <Needs Need, class Body, class Excuse>
cudaError_t cuda_call(const char* name, Body&& body, Excuse&& excuse) noexcept {
  Runtime* const runtime = current_run();
  if (runtime == nullptr) return cudaErrorInitializationError;
  Runtime::Lock lock(runtime->mutex());
  cudaError_t result = begin_cuda_call(*runtime, name, Need);
  if (result == cudaSuccess) {
    try {
      result = body(*runtime, lock);
    } catch (const Refused& refused) {
      result = refused.error;
    }
  }
  if (!lock.owns_lock()) lock.lock();
  if (result != cudaSuccess) excuse(*runtime);
  return end_cuda_call(result);
}

}  // namespace strata::test::standin
