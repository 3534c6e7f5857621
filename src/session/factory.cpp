#include "session/factory.hpp"

#include "cpu/cpu_device.hpp"
#include "posix/posix_block_io.hpp"
#include "self/self_communicator.hpp"
#include "strata/communicator.hpp"
#include "strata/error.hpp"
#if STRATA_HAS_MPI
#include "mpi/mpi_communicator.hpp"
#endif

namespace strata {

std::unique_ptr<Device> make_device(Bytes arena) {
  return std::make_unique<CpuDevice>(CpuDevice::Options{.arena = arena});
}

std::unique_ptr<BlockIo> make_block_io(const Config& config, const LogSink& log) {
  return std::make_unique<PosixBlockIo>(
      PosixBlockIo::Options{.threads = config.nvme.io_threads, .direct = true, .log = log});
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
