// Which process this is, and on which host, in plain bytes that ranks send to each other. A
// process id alone is not enough: ids are reused, and mean nothing in another process-id
// namespace. Values only; any thread.
#pragma once

#include <cstdint>
#include <optional>

namespace strata {

struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;    // field 22 of /proc/<pid>/stat (man 5 proc)
  std::uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid
  char host[64] = {};               // boot id: the same on one kernel only
};

ProcessIdentity identify_this_process();

struct ProcessStat {
  char state = '?';
  std::uint64_t start_ticks = 0;
};

// What /proc tells about a process; empty when it does not exist (or /proc is not mounted).
std::optional<ProcessStat> read_process_stat(std::int64_t pid);

}  // namespace strata
