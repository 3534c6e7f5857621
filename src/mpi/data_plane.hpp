// How the payload of collectives travels between the ranks of one MPI communicator. Two
// implementations: windows shared by the ranks of one host, and messages.
#pragma once

#include "ports/data_plane.hpp"

namespace strata::mpi {

class DataPlane : public strata::DataPlane {
 public:
  // Frees what MPI holds. Collective, and only when no rank has failed.
  virtual void free() = 0;
};

}  // namespace strata::mpi
