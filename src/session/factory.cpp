#include "session/factory.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "cpu/cpu_device.hpp"
#include "posix/posix_block_io.hpp"
#include "strata/cuda_interop.hpp"
#include "strata/error.hpp"
#if STRATA_HAS_CUDA
#include "cuda/cuda_device.hpp"
#endif
#if STRATA_HAS_URING
#include "uring/uring_block_io.hpp"
#endif

namespace strata {
namespace {

#if STRATA_HAS_URING

std::unique_ptr<BlockIo> make_uring_block_io(files::QueueDepth depth, const LogSink& log) {
  return std::make_unique<UringBlockIo>(
      UringBlockIo::Options{.depth = depth, .direct = true, .log = log});
}

#else

std::unique_ptr<BlockIo> make_uring_block_io(files::QueueDepth, const LogSink&) {
  throw Error(ErrorCode::not_supported,
              "this build has no io_uring: install liburing-dev and configure with "
              "-DSTRATA_URING=ON");
}

#endif

[[maybe_unused]] constexpr std::string_view kNoCuda =
    "this build has no CUDA: install the CUDA toolkit and configure with -DSTRATA_CUDA=ON";

#if STRATA_HAS_CUDA

// As the launcher numbers the ranks that see the same GPUs: containers may share a host. Without a
// launcher's word, the position on the host.
int local_rank_of(const Communicator& communicator) {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr) continue;
    int value = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
    if (error == std::errc() && *end == '\0' && value >= 0) return value;
  }
  return static_cast<int>(communicator.host_rank().value);
}

// A launcher that gives each rank one GPU leaves every rank GPU 0.
int gpu_of(const Communicator& communicator) {
  const int gpus = CudaDevice::count();
  const int position = local_rank_of(communicator);
  if (gpus == 1 || position < gpus) return gpus == 1 ? 0 : position;
  throw Error(
      ErrorCode::config,
      fmt::format("this is rank {} of its host, numbered from 0, where {} GPUs are visible: "
                  "start no more ranks than GPUs, or let CUDA_VISIBLE_DEVICES name more",
                  position, gpus),
      {.rank = communicator.rank()});
}

std::unique_ptr<Device> make_cuda_device(const Config& config, Bytes arena,
                                         const Communicator& communicator) {
  const bool pooled = config.device.allocator == Config::DeviceAllocator::pool;
  return std::make_unique<CudaDevice>(
      CudaDevice::Options{.arena = arena,
                          .index = gpu_of(communicator),
                          .source = pooled ? cuda::ArenaSource::pool : cuda::ArenaSource::malloc});
}

CudaDevice& require_cuda(Device& device) {
  if (auto* const gpu = dynamic_cast<CudaDevice*>(&device)) return *gpu;
  throw Error(
      ErrorCode::not_supported,
      fmt::format("device {} has no CUDA streams: set device.kind to \"cuda\"", device.name()));
}

#else

std::unique_ptr<Device> make_cuda_device(const Config&, Bytes, const Communicator&) {
  throw Error(ErrorCode::not_supported, kNoCuda);
}

#endif

}  // namespace

bool finds_gpu(const LogSink& log) {
#if STRATA_HAS_CUDA
  try {
    return CudaDevice::count() > 0;
  } catch (const Error& error) {
    if (log) log(LogLevel::info, fmt::format("{}; using the CPU", error.what()));
  }
#else
  if (log) log(LogLevel::info, fmt::format("{}; using the CPU", kNoCuda));
#endif
  return false;
}

bool runs_on_gpu(const Config& config, const Communicator& communicator, const LogSink& log) {
  if (config.device.kind != Config::DeviceKind::automatic) {
    return config.device.kind == Config::DeviceKind::cuda;
  }
  const bool can_join = communicator.size() == 1 || !communicator.host_memory_only();
  return can_join && finds_gpu(log);
}

std::unique_ptr<Device> make_device(const Config& config, Bytes arena,
                                    const Communicator& communicator, const LogSink& log) {
  if (runs_on_gpu(config, communicator, log)) return make_cuda_device(config, arena, communicator);
  return make_cpu_device(arena);
}

std::unique_ptr<Device> make_cpu_device(Bytes arena) {
  return std::make_unique<CpuDevice>(CpuDevice::Options{.arena = arena});
}

#if STRATA_HAS_CUDA

CUstream_st* to_cuda_stream(Device& device, StreamId stream) {
  return require_cuda(device).stream(stream);
}

StreamId from_cuda_stream(Device& device, CUstream_st* stream, std::string_view name) {
  return require_cuda(device).adopt_stream(stream, name);
}

int cuda_device_index(Device& device) { return require_cuda(device).index(); }

#else

CUstream_st* to_cuda_stream(Device&, StreamId) { throw Error(ErrorCode::not_supported, kNoCuda); }

StreamId from_cuda_stream(Device&, CUstream_st*, std::string_view) {
  throw Error(ErrorCode::not_supported, kNoCuda);
}

int cuda_device_index(Device&) { throw Error(ErrorCode::not_supported, kNoCuda); }

#endif

std::unique_ptr<BlockIo> make_block_io(const Config& config, const LogSink& log) {
  const unsigned half = (config.nvme.queue_depth + 1) / 2;
  const files::QueueDepth depth{config.nvme.queue_depth,
                                config.nvme.write_depth == 0 ? half : config.nvme.write_depth};
  if (config.nvme.backend != Config::IoBackend::posix) {
    try {
      return make_uring_block_io(depth, log);
    } catch (const Error& error) {
      if (config.nvme.backend == Config::IoBackend::io_uring) throw;
      if (log) log(LogLevel::warning, fmt::format("{}; using POSIX threads", error.what()));
    }
  }
  return std::make_unique<PosixBlockIo>(
      PosixBlockIo::Options{.depth = depth, .direct = true, .log = log});
}

}  // namespace strata
