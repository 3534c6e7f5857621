#include "mpi/peer_watch.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

namespace strata::mpi {
namespace {

struct ProcessStat {
  char state = '?';
  std::uint64_t start_ticks = 0;
};

// Empty when the process does not exist (or /proc is not mounted).
std::optional<ProcessStat> read_stat(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The command name in parentheses may hold spaces and parentheses; fields count from its end.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string skipped;
  constexpr int kFirstSkipped = 4;
  constexpr int kStartTicks = 22;
  for (int field = kFirstSkipped; field < kStartTicks; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

}  // namespace

ProcessIdentity identify_this_process() {
  ProcessIdentity self;
  self.pid = ::getpid();
  if (const auto stat = read_stat(self.pid)) self.start_ticks = stat->start_ticks;
  struct stat status {};
  if (::stat("/proc/self/ns/pid", &status) == 0) self.pid_namespace = status.st_ino;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  std::memcpy(self.host, id.data(), std::min(id.size(), sizeof(self.host) - 1));
  return self;
}

bool can_watch(const ProcessIdentity& self, const ProcessIdentity& peer) {
  return peer.start_ticks != 0 && self.pid_namespace != 0 &&
         self.pid_namespace == peer.pid_namespace && self.host[0] != '\0' &&
         std::memcmp(self.host, peer.host, sizeof(self.host)) == 0;
}

bool has_ended(const ProcessIdentity& peer) {
  if (::kill(static_cast<pid_t>(peer.pid), 0) != 0 && errno == ESRCH) return true;
  const auto stat = read_stat(peer.pid);
  if (!stat) return false;  // out of descriptors, say: not a proof of death
  return stat->start_ticks != peer.start_ticks || stat->state == 'Z' || stat->state == 'X';
}

}  // namespace strata::mpi
