// Gives a data file its blocks before the first step, so that a full disk shows at open() and not
// in the middle of a step. Plain fallocate: writing zeros pays the same slow first pass
// (measured), and sparse files cost twice the CPU and can still meet ENOSPC.
#pragma once

#include <string>

#include "strata/types.hpp"

namespace strata::files {

enum class Allocation { reserved, sparse };

// Makes the file exactly `size` long. Returns sparse where the file system knows no fallocate; the
// free space was then only checked. Throws Error no_space with the bytes missing (the file has its
// old length again), io otherwise. SIGXFSZ does not reach the process. Blocks.
Allocation preallocate(int fd, const std::string& path, Bytes size);

}  // namespace strata::files
