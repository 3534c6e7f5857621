#include "mpi/peer_watch.hpp"

#include <signal.h>

#include <cerrno>
#include <cstring>

namespace strata::mpi {

bool can_watch(const ProcessIdentity& self, const ProcessIdentity& peer) {
  return peer.start_ticks != 0 && self.pid_namespace != 0 &&
         self.pid_namespace == peer.pid_namespace && self.host[0] != '\0' &&
         std::memcmp(self.host, peer.host, sizeof(self.host)) == 0;
}

bool has_ended(const ProcessIdentity& peer) {
  if (::kill(static_cast<pid_t>(peer.pid), 0) != 0 && errno == ESRCH) return true;
  const auto stat = read_process_stat(peer.pid);
  if (!stat) return false;  // out of descriptors, say: not a proof of death
  return stat->start_ticks != peer.start_ticks || stat->state == 'Z' || stat->state == 'X';
}

}  // namespace strata::mpi
