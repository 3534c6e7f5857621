// The communicators of factory.hpp and of the public headers.
#include <fmt/format.h>

#include <utility>

#include "self/self_communicator.hpp"
#include "session/factory.hpp"
#include "strata/communicator.hpp"
#include "strata/error.hpp"
#include "strata/session.hpp"
#include "tcp/control_plane.hpp"
#include "tcp/tcp_communicator.hpp"
#if STRATA_HAS_MPI
#include "mpi/mpi_communicator.hpp"
#endif
#if STRATA_HAS_NCCL
#include "nccl/nccl_communicator.hpp"
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

namespace {

constexpr std::chrono::milliseconds kRendezvousTimeout{60'000};

// Only to meet.
std::unique_ptr<Communicator> make_small_mpi_communicator() {
  return make_mpi_communicator({.shared_memory = false, .window = 64_KiB});
}

std::unique_ptr<tcp::ControlPlane> meet(Communicator& mpi, std::chrono::milliseconds timeout) {
  return tcp::ControlPlane::connect(
      mpi.rank().value, mpi.size(),
      [&](std::span<const std::byte> mine) { return mpi.exchange(mine); }, timeout);
}

std::unique_ptr<tcp::ControlPlane> meet(std::chrono::milliseconds timeout) {
  if (launched_by_mpi()) return meet(*make_small_mpi_communicator(), timeout);
  return tcp::ControlPlane::connect(
      launched_by_environment() ? tcp::launch_from_environment() : tcp::Launch{}, timeout);
}

#if STRATA_HAS_NCCL

std::unique_ptr<Communicator> make_nccl(std::unique_ptr<tcp::ControlPlane> control, LogSink log) {
  return create_nccl_communicator(std::move(control), std::move(log));
}

#else

std::unique_ptr<Communicator> make_nccl(std::unique_ptr<tcp::ControlPlane>, const LogSink&) {
  throw Error(ErrorCode::not_supported,
              "this build has no NCCL: install libnccl-dev beside the CUDA toolkit and configure "
              "with -DSTRATA_NCCL=ON");
}

#endif

// Throws when `all`, one byte of each rank, do not agree: a GPU that one rank lacks.
void require_same_devices(const std::vector<std::byte>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto kind = [](std::byte on_gpu) { return on_gpu == std::byte{1} ? "a GPU" : "the CPU"; };
    throw Error(ErrorCode::config,
                fmt::format("rank 0 would run on {} and rank {} on {}: see what nvidia-smi says on "
                            "both hosts, or set device.kind",
                            kind(all[0]), rank, kind(all[rank])));
  }
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const NcclOptions& options) {
  return make_nccl(meet(options.rendezvous_timeout), options.log);
}

std::unique_ptr<Communicator> make_communicator(const Config& config, const LogSink& log) {
  if (!launched_by_mpi() && !launched_by_environment()) return make_self_communicator();
  const bool on_gpus =
      config.device.kind == Config::DeviceKind::cuda ||
      (config.device.kind == Config::DeviceKind::automatic && STRATA_HAS_NCCL && finds_gpu(log));
  const std::byte mine{on_gpus};
  if (launched_by_mpi()) {
    const auto small = make_small_mpi_communicator();
    require_same_devices(small->exchange({&mine, 1}));
    if (on_gpus) return make_nccl(meet(*small, kRendezvousTimeout), log);
    return make_mpi_communicator(
        {.shared_memory = config.communicator.shared_memory, .window = config.communicator.window});
  }
  auto control = meet(kRendezvousTimeout);
  require_same_devices(control->call(ControlCall::exchange, {&mine, 1}));
  if (on_gpus) return make_nccl(std::move(control), log);
  return create_tcp_communicator(std::move(control), kTcpStaging);
}

}  // namespace strata
