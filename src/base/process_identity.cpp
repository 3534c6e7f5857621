#include "base/process_identity.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace strata {

std::optional<ProcessStat> read_process_stat(std::int64_t pid) {
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

ProcessIdentity identify_this_process() {
  ProcessIdentity self;
  self.pid = ::getpid();
  if (const auto stat = read_process_stat(self.pid)) self.start_ticks = stat->start_ticks;
  struct stat status {};
  if (::stat("/proc/self/ns/pid", &status) == 0) self.pid_namespace = status.st_ino;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  std::memcpy(self.host, id.data(), std::min(id.size(), sizeof(self.host) - 1));
  return self;
}

}  // namespace strata
