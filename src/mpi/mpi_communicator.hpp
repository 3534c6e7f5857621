// The Communicator over MPI, for devices whose memory the CPU can address. Control messages, and
// payload between hosts, travel by MPI; payload between the ranks of one host by shared windows.
// The sums are the same for both (base/reduce.hpp).
//
// MPI needs MPI_THREAD_SERIALIZED: the adapter makes one MPI call at a time in the process. A
// program that calls MPI itself while a communicator lives needs MPI_THREAD_MULTIPLE.
//
// When a rank is lost: waiting calls end within the timeout, for a process that died on this host
// within a fraction of a second. The rank that notices tells the others, and they end too. The
// destructor then frees nothing that would wait for the lost rank, and MPI is not finalised; under
// mpirun such a process counts as failed. mpirun itself ends all ranks as soon as one dies, unless
// it was started with --enable-recovery.
#pragma once

#include <memory>

#include "strata/communicator.hpp"

namespace strata {

// The communicator of all ranks of MPI_COMM_WORLD; see make_mpi_communicator().
// Throws Error(invalid_argument) for a window too small for the number of ranks,
// Error(not_supported) when MPI cannot start. Collective. Blocks.
std::unique_ptr<Communicator> create_mpi_communicator(const MpiOptions& options);

}  // namespace strata
