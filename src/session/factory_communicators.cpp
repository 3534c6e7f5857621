// The communicators of factory.hpp and of the public headers.
#include "self/self_communicator.hpp"
#include "session/factory.hpp"
#include "strata/communicator.hpp"
#include "strata/error.hpp"
#include "strata/session.hpp"
#include "tcp/tcp_communicator.hpp"
#if STRATA_HAS_MPI
#include "mpi/mpi_communicator.hpp"
#endif
#if STRATA_HAS_NCCL
#include "nccl/nccl_communicator.hpp"
#include "tcp/control_plane.hpp"
#endif

namespace strata {

std::unique_ptr<Communicator> make_self_communicator() { return create_self_communicator(); }

std::unique_ptr<Communicator> make_tcp_communicator(const TcpOptions& options) {
  return create_tcp_communicator(options);
}

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

#if STRATA_HAS_NCCL

namespace {

std::unique_ptr<tcp::ControlPlane> meet(std::chrono::milliseconds timeout) {
  if (launched_by_mpi()) {
    // Only to exchange addresses.
    const auto mpi = make_mpi_communicator({.shared_memory = false, .window = 64_KiB});
    return tcp::ControlPlane::connect(
        mpi->rank().value, mpi->size(),
        [&](std::span<const std::byte> mine) { return mpi->exchange(mine); }, timeout);
  }
  return tcp::ControlPlane::connect(
      launched_by_environment() ? tcp::launch_from_environment() : tcp::Launch{}, timeout);
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options) {
  return create_nccl_communicator(meet(options.rendezvous_timeout), options.log);
}

#else

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions&) {
  throw Error(ErrorCode::not_supported,
              "this build has no NCCL: install libnccl-dev beside the CUDA toolkit and configure "
              "with -DSTRATA_NCCL=ON");
}

#endif

std::unique_ptr<Communicator> make_communicator(const Config& config, const LogSink& log) {
  if (!launched_by_mpi() && !launched_by_environment()) return make_self_communicator();
  const bool on_gpus =
      config.device.kind == Config::DeviceKind::cuda ||
      (config.device.kind == Config::DeviceKind::automatic && STRATA_HAS_NCCL && finds_gpu(log));
  if (on_gpus) return make_nccl_communicator({.log = log});
  if (launched_by_mpi()) {
    return make_mpi_communicator(
        {.shared_memory = config.communicator.shared_memory, .window = config.communicator.window});
  }
  return make_tcp_communicator();
}

}  // namespace strata
