// Tells whether a process on this host still runs, so that the death of a rank shows within a
// fraction of a second and not only at the timeout. A peer whose process id means nothing here
// counts as running, and only the timeout finds it.
// Thread: any; values only.
#pragma once

#include "base/process_identity.hpp"

namespace strata::mpi {

using strata::identify_this_process;
using strata::ProcessIdentity;

// Whether the two processes can see each other's process ids.
bool can_watch(const ProcessIdentity& self, const ProcessIdentity& peer);

// True when the peer has ended: gone, a zombie, or its id now names another process.
// Pre: can_watch(this process, peer).
bool has_ended(const ProcessIdentity& peer);

}  // namespace strata::mpi
