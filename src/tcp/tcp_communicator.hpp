// Communicator over TCP: ranks on one host or on many, without MPI and without a GPU. Internal to
// the library; programs call make_tcp_communicator().
#pragma once

#include <memory>

#include "strata/communicator.hpp"
#include "tcp/control_plane.hpp"

namespace strata {

// The ranks that the environment describes.
std::unique_ptr<Communicator> create_tcp_communicator(const TcpOptions& options);

inline constexpr Bytes kTcpStaging = 4_MiB;

// The ranks of `control`; `staging` is host memory that sums go through. Collective. Blocks.
std::unique_ptr<Communicator> create_tcp_communicator(std::unique_ptr<tcp::ControlPlane> control,
                                                      Bytes staging);

}  // namespace strata
