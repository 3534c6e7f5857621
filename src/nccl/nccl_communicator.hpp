// The Communicator over NCCL, for CUDA devices. Collectives are NCCL's, on the stream that the
// caller names, one group per call; sums are rounded as NCCL rounds them. Control messages travel
// by TCP (tcp/control_plane.hpp), also when ranks met by MPI.
//
// When a rank is lost: NCCL alone would hang. Here the control plane notices a dead peer at once,
// NCCL's asynchronous errors are polled, and a collective that is ready and does not finish within
// the timeout counts as failed, naming the ranks that are behind. Then the NCCL communicator is
// aborted, so that its work on streams ends, and the peers are told.
//
// attach() needs a CudaDevice. NCCL's own memory is outside the arena: outside.device in the
// configuration leaves room for it. staging_bytes() is 0.
#pragma once

#include <memory>

#include "strata/communicator.hpp"
#include "strata/log.hpp"
#include "tcp/control_plane.hpp"

namespace strata {

// The communicator of the ranks of `control`. Does not block.
std::unique_ptr<Communicator> create_nccl_communicator(std::unique_ptr<tcp::ControlPlane> control,
                                                       LogSink log = {});

}  // namespace strata
