// The lock that keeps two sessions off one data file. It is flock(2) on the very descriptor that
// does the I/O, because requests in flight keep that descriptor's lock after a killed process is
// gone, until the device is done with them (measured: up to 0.12 s); a separate lock file would be
// free while old writes still land.
#pragma once

#include <string>

namespace strata::files {

// Waits up to half a second for a dying holder, then throws Error in_use naming the holder's pid
// when the kernel tells it. Blocks.
void lock_file(int fd, const std::string& path);

}  // namespace strata::files
