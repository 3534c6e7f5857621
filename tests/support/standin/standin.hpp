// The CUDA runtime and NCCL for tests without a GPU, and harsher than hardware. A program that is
// compiled against the real headers links this library in place of libcudart and libnccl; a
// function that is missing here is a link error, so neither of them may be on the link line.
//
// Every stand-in GPU is an AdversarialDevice: work runs as late as its policy allows, and every
// access goes through a race detector when it is enqueued, so a missing wait is found whatever the
// timing. Device memory lies at addresses that nobody can dereference; kernel bodies translate
// them with host_view(). What a program must not rely on is told as a violation, also where
// hardware would let it pass: an event that was never recorded, a copy from pageable memory, a
// stream, event or registration given up while the host does not know that it is idle.
//
// Not stood in: the default stream, peer access, waits between devices, managed and mapped memory,
// graphs, and reductions other than sums, products, minima and maxima. All of them are told.
//
// One run lasts from configure() to finish(). Thread: any but for these two, which are called
// while no other thread is inside a call.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/device.hpp"
#include "strata/types.hpp"
#include "support/demand_gate.hpp"

namespace strata::test::standin {

struct Options {
  int devices = 1;
  Bytes memory = 64_MiB;  // of each device
  std::uint64_t seed = 0;
  DemandPolicy policy = DemandPolicy::as_late_as_possible;
  std::chrono::milliseconds patience{10};  // AdversarialDevice::Options::patience

  int driver_version = 13000;
  int runtime_version = CUDART_VERSION;
  int nccl_version = NCCL_VERSION_CODE;
  int compute_major = 9;
  int compute_minor = 0;
  // What cudaGetDeviceCount returns, and every call that needs a device: cudaErrorNoDevice,
  // cudaErrorInsufficientDriver.
  cudaError_t count_error = cudaSuccess;
};

// Starts a run in which nothing was ever called. Violations of a run that nobody finished are told
// by the next finish(). Before the first configure() and after finish() every call fails with
// cudaErrorInitializationError or ncclSystemError.
void configure(const Options& options = {});

// Ends the run: tells what is still alive, lets all work run (work of NCCL that waits for a peer
// gives up) and returns every violation. Blocks.
std::vector<std::string> finish();

// What was found so far.
std::vector<std::string> violations();

// Faults. A call is named as in the headers ("cudaMemcpyAsync", "ncclAllGather"); launch() counts
// as "cudaLaunchKernel". Not counted, since they report and cannot fail: cudaGetErrorName,
// cudaGetErrorString, ncclGetErrorString, ncclGetLastError.

// How often each function has been called in this run. Functions without a call are missing.
std::map<std::string, std::uint64_t> calls();

// The k-th call (from 1) of `call` in this run fails with `error` and does nothing else. Destroy
// and free functions that fail so leave their object alive, but it no longer counts as a leak.
struct Failure {
  std::string call;
  std::uint64_t k = 1;
  cudaError_t error = cudaErrorUnknown;
  // The thread's device is lost, as after an illegal address: every later call that uses it
  // returns `error` and work that has not run yet never does. Functions that destroy, free or
  // unregister return it too, and what they were given no longer counts as a leak.
  bool sticky = false;
};
struct NcclFailure {
  std::string call;
  std::uint64_t k = 1;
  ncclResult_t error = ncclSystemError;
};
void fail(Failure failure);
void fail(NcclFailure failure);

// The k-th piece of work (from 1: copies, sets, kernels, host functions and collectives, in the
// order in which they were enqueued) faults when it runs, as a sticky error.
void fail_async(std::uint64_t k, cudaError_t error = cudaErrorIllegalAddress);
// How many pieces of work were enqueued in this run.
std::uint64_t works();

// Bytes of the copies between host and devices that were enqueued in this run.
struct CopiedBytes {
  Bytes to_device;
  Bytes to_host;
};
CopiedBytes copied();

// The n-th cudaStreamWaitEvent of this run (from 0) does nothing.
void ignore_wait(std::uint64_t n);
// How many cudaStreamWaitEvent there were in this run.
std::uint64_t waits();

// ncclCommGetAsyncError of every communicator of this rank tells `error` from now on, and its
// work hangs until ncclCommAbort.
void break_nccl(int rank, ncclResult_t error = ncclRemoteError);

// From now on the groups of this rank stay ncclInProgress and never reach a stream, as while NCCL
// connects to a peer that does not come.
void hold_enqueues(int rank);

// Kernels. `function` runs in stream order, like a kernel: `accesses` and whatever `function`
// captures are device addresses, which it translates with host_view(); it must not call CUDA.
// Fails as a launch does: the error is also what cudaGetLastError() tells next.
cudaError_t launch(cudaStream_t stream, std::span<const Access> accesses, HostFunction function);

// Where the bytes of a device address are. Host addresses pass through.
void* host_address(const void* address);
template <class T>
T* host_view(T* address) {
  return static_cast<T*>(host_address(address));
}

// The host itself touches pinned memory now, and device work may touch it as well: told as a
// violation when the host does not know that such work has finished.
void host_reads(const void* data, Bytes size);
void host_writes(void* data, Bytes size);

}  // namespace strata::test::standin
