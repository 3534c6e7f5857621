#include "session/factory.hpp"

#include <fmt/format.h>

#include "cpu/cpu_device.hpp"
#include "posix/posix_block_io.hpp"
#include "self/self_communicator.hpp"
#include "strata/communicator.hpp"
#include "strata/error.hpp"
#if STRATA_HAS_MPI
#include "mpi/mpi_communicator.hpp"
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

}  // namespace

std::unique_ptr<Device> make_device(Bytes arena) {
  return std::make_unique<CpuDevice>(CpuDevice::Options{.arena = arena});
}

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

std::unique_ptr<Communicator> make_self_communicator() { return create_self_communicator(); }

#if STRATA_HAS_MPI

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options) {
  return create_mpi_communicator(options);
}

#else

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions&) {
  throw Error(ErrorCode::not_supported,
              "this build has no MPI: install libopenmpi-dev and configure with -DSTRATA_MPI=ON");
}

#endif

}  // namespace strata
