#include "cuda/arena.hpp"

#include <fmt/format.h>

#include "cuda/check.hpp"
#include "strata/bytes.hpp"

namespace strata::cuda {
namespace {

// A stream for one allocation or release.
class OneUseStream {
 public:
  OneUseStream() { result_ = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  OneUseStream(const OneUseStream&) = delete;
  OneUseStream& operator=(const OneUseStream&) = delete;
  ~OneUseStream() {
    if (result_ == cudaSuccess) [[maybe_unused]]
      const cudaError_t end = cudaStreamDestroy(stream_);
  }

  template <class Call>
  cudaError_t run(Call&& call) {
    if (result_ != cudaSuccess) return result_;
    const cudaError_t called = call(stream_);
    return called == cudaSuccess ? cudaStreamSynchronize(stream_) : called;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaError_t result_ = cudaSuccess;
};

cudaError_t allocate(void** data, Bytes size, ArenaSource source) {
  if (source == ArenaSource::malloc) return cudaMalloc(data, size.value);
  return OneUseStream().run(
      [&](cudaStream_t stream) { return cudaMallocAsync(data, size.value, stream); });
}

cudaError_t release(void* data, ArenaSource source) {
  if (source == ArenaSource::malloc) return cudaFree(data);
  return OneUseStream().run([&](cudaStream_t stream) { return cudaFreeAsync(data, stream); });
}

Error out_of_memory(int device, Bytes size) {
  [[maybe_unused]] const cudaError_t taken = cudaGetLastError();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return Error(ErrorCode::budget_exceeded,
               fmt::format("GPU {} has no {} in one piece: {} of its {} are free; lower "
                           "budgets.device, or end what else uses this GPU (nvidia-smi)",
                           device, format_bytes(size), format_bytes(Bytes{free_bytes}),
                           format_bytes(Bytes{total_bytes})));
}

}  // namespace

Arena::Arena(int device, Bytes size, ArenaSource source) : device_(device), source_(source) {
  if (size == Bytes{}) return;
  check(enter(device), "cudaSetDevice");
  void* data = nullptr;
  const cudaError_t result = allocate(&data, size, source);
  if (result == cudaErrorMemoryAllocation) throw out_of_memory(device, size);
  check(result, source == ArenaSource::malloc ? "cudaMalloc" : "cudaMallocAsync");
  bytes_ = {static_cast<std::byte*>(data), size.value};
}

Arena::~Arena() {
  if (bytes_.empty()) return;
  // A device that fails here has told so before, and the memory goes with its context.
  [[maybe_unused]] cudaError_t result = enter(device_);
  result = release(bytes_.data(), source_);
}

}  // namespace strata::cuda
