#include "cuda/stream_timer.hpp"

#include "cuda/check.hpp"

namespace strata::cuda {
namespace {

// Asking the runtime costs about as much as enqueueing, so it is done for many pieces at once.
constexpr std::size_t kCollectAt = 64;
constexpr double kMillisecond = 1e-3;

}  // namespace

StreamTimer::~StreamTimer() { close(); }

bool StreamTimer::succeeded(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return true;
  failure_.record(error_of(result, call));
  return false;
}

void StreamTimer::begin() {
  if (running_.size() >= kCollectAt) collect();
  if (idle_.empty()) {
    Piece piece;
    for (cudaEvent_t* event : {&piece.begin, &piece.end}) {
      succeeded(cudaEventCreateWithFlags(event, cudaEventBlockingSync), "cudaEventCreateWithFlags");
    }
    idle_.push_back(piece);
  }
  running_.push_back(idle_.back());
  idle_.pop_back();
  record(running_.back().begin);
}

void StreamTimer::end() { record(running_.back().end); }

void StreamTimer::record(cudaEvent_t event) {
  if (event != nullptr) succeeded(cudaEventRecord(event, stream_), "cudaEventRecord");
}

void StreamTimer::collect() {
  while (!running_.empty() && !failure_.is_set()) {
    const Piece piece = running_.front();
    const cudaError_t result = cudaEventQuery(piece.end);
    if (result == cudaErrorNotReady) {
      [[maybe_unused]] const cudaError_t taken = cudaGetLastError();
      return;
    }
    float milliseconds = 0;
    if (!succeeded(result, "cudaEventQuery") ||
        !succeeded(cudaEventElapsedTime(&milliseconds, piece.begin, piece.end),
                   "cudaEventElapsedTime")) {
      return;
    }
    seconds_ += static_cast<double>(milliseconds) * kMillisecond;
    running_.pop_front();
    idle_.push_back(piece);
  }
}

double StreamTimer::seconds() {
  const std::lock_guard lock(mutex_);
  if (succeeded(enter(device_), "cudaSetDevice")) collect();
  return seconds_;
}

void StreamTimer::close() {
  const std::lock_guard lock(mutex_);
  collect();
  idle_.insert(idle_.end(), running_.begin(), running_.end());
  running_.clear();
  for (const Piece& piece : idle_) {
    for (cudaEvent_t event : {piece.begin, piece.end}) {
      if (event != nullptr) succeeded(cudaEventDestroy(event), "cudaEventDestroy");
    }
  }
  idle_.clear();
}

}  // namespace strata::cuda
