#include "files/file_lock.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "strata/error.hpp"

namespace strata::files {
namespace {

using namespace std::chrono_literals;

// Four times what in-flight requests of a killed process were seen to hold the lock.
constexpr auto kPatience = 500ms;
constexpr auto kPause = 5ms;

// The pid of the flock holder from /proc/locks, proc(5): "1: FLOCK ADVISORY WRITE 4242
// 08:01:131 0 EOF". 0 when it is not listed (another pid namespace, or an I/O that outlived its
// process).
pid_t lock_holder(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return 0;
  const std::string inode =
      fmt::format("{:02x}:{:02x}:{}", major(status.st_dev), minor(status.st_dev), status.st_ino);
  std::ifstream locks("/proc/locks");
  std::string line;
  while (std::getline(locks, line)) {
    std::istringstream fields(line);
    std::string number, kind, mode, access, where;
    long long pid = 0;
    fields >> number >> kind >> mode >> access >> pid >> where;
    if (fields && kind == "FLOCK" && where == inode && pid > 0) return static_cast<pid_t>(pid);
  }
  return 0;
}

std::string describe(pid_t holder) {
  if (holder == 0) return "another process";
  if (holder == ::getpid()) return "this process";
  return fmt::format("process {}", holder);
}

bool try_lock(int fd, const std::string& path) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno == EINTR) continue;
    throw Error(ErrorCode::io, "cannot lock the data file; choose a local file system",
                {.errnum = errno, .path = path});
  }
  return true;
}

}  // namespace

void lock_file(int fd, const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!try_lock(fd, path)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::in_use,
                  fmt::format("{} holds the data file; end it or choose another run directory",
                              describe(lock_holder(fd))),
                  {.path = path});
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace strata::files
