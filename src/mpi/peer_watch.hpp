// Tells whether a process on this host still runs, so that the death of a rank shows within a
// fraction of a second and not only at the timeout. A process id alone is not enough: ids are
// reused, and mean nothing in another process-id namespace; such a peer counts as running and
// only the timeout finds it.
// Thread: any; values only.
#pragma once

#include <cstdint>
#include <string>

namespace strata::mpi {

// Plain bytes that ranks send to each other.
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;    // field 22 of /proc/<pid>/stat (man 5 proc)
  std::uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid
  char host[64] = {};               // boot id: the same on one kernel only
};

ProcessIdentity identify_this_process();

// Whether the two processes can see each other's process ids.
bool can_watch(const ProcessIdentity& self, const ProcessIdentity& peer);

// True when the peer has ended: gone, a zombie, or its id now names another process.
// Pre: can_watch(this process, peer).
bool has_ended(const ProcessIdentity& peer);

}  // namespace strata::mpi
