#include "support/standin/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.hpp"

namespace strata::test::standin {
namespace {

// A misspelt name would be a failure that never comes.
constexpr std::array kCudaCalls = std::to_array<std::string_view>({
    "cudaDeviceGetAttribute",
    "cudaDeviceGetPCIBusId",
    "cudaDeviceGetStreamPriorityRange",
    "cudaDriverGetVersion",
    "cudaEventCreateWithFlags",
    "cudaEventDestroy",
    "cudaEventElapsedTime",
    "cudaEventQuery",
    "cudaEventRecord",
    "cudaEventSynchronize",
    "cudaFree",
    "cudaFreeAsync",
    "cudaGetDevice",
    "cudaGetDeviceCount",
    "cudaGetDeviceProperties",
    "cudaGetLastError",
    "cudaHostRegister",
    "cudaHostUnregister",
    "cudaLaunchHostFunc",
    "cudaLaunchKernel",
    "cudaMalloc",
    "cudaMallocAsync",
    "cudaMemGetInfo",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaPeekAtLastError",
    "cudaPointerGetAttributes",
    "cudaRuntimeGetVersion",
    "cudaSetDevice",
    "cudaStreamCreateWithFlags",
    "cudaStreamCreateWithPriority",
    "cudaStreamDestroy",
    "cudaStreamQuery",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
});
constexpr std::array kNcclCalls = std::to_array<std::string_view>({
    "ncclAllGather",    "ncclAllReduce",         "ncclBroadcast",      "ncclCommAbort",
    "ncclCommCount",    "ncclCommCuDevice",      "ncclCommDeregister", "ncclCommDestroy",
    "ncclCommFinalize", "ncclCommGetAsyncError", "ncclCommInitRank",   "ncclCommInitRankConfig",
    "ncclCommRegister", "ncclCommUserRank",      "ncclGetUniqueId",    "ncclGetVersion",
    "ncclGroupEnd",     "ncclGroupStart",        "ncclReduceScatter",
});

template <class Names>
void require_known(const Names& names, std::string_view call) {
  STRATA_ASSERT(std::find(names.begin(), names.end(), call) != names.end(),
                fmt::format("the stand-in has no function '{}' that can fail", call));
}

template <class Planned>
std::optional<Planned> planned(const std::vector<Planned>& failures, std::string_view call,
                               std::uint64_t k) {
  for (const Planned& failure : failures) {
    if (failure.call == call && failure.k == k) return failure;
  }
  return std::nullopt;
}

}  // namespace

void Faults::add(Failure failure) {
  require_known(kCudaCalls, failure.call);
  failures_.push_back(std::move(failure));
}

void Faults::add(NcclFailure failure) {
  require_known(kNcclCalls, failure.call);
  nccl_failures_.push_back(std::move(failure));
}

std::optional<Failure> Faults::next_cuda(std::string_view call) {
  require_known(kCudaCalls, call);
  return planned(failures_, call, count(call));
}

std::optional<NcclFailure> Faults::next_nccl(std::string_view call) {
  require_known(kNcclCalls, call);
  return planned(nccl_failures_, call, count(call));
}

std::optional<cudaError_t> Faults::next_work() {
  const auto found = async_.find(++works_);
  return found == async_.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t Faults::count(std::string_view call) {
  auto found = calls_.find(call);
  if (found == calls_.end()) found = calls_.emplace(std::string(call), 0).first;
  return ++found->second;
}

}  // namespace strata::test::standin
