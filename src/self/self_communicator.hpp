// The communicator of a program with one rank: every collective leaves its buffers as they are.
// Collectives still travel through the stream where the device checks accesses on the host, so
// that one rank exercises the same order as many.
#pragma once

#include <memory>

#include "strata/communicator.hpp"

namespace strata {

std::unique_ptr<Communicator> create_self_communicator();

}  // namespace strata
