#include "output.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "strata/communicator.hpp"

namespace train_gpt {

void Output::write(std::string_view text) {
  if (broken_) return;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  broken_ = true;
  fmt::print(stderr, "train_gpt: warning: cannot write to stdout: {}; going on without\n",
             std::strerror(errno));
}

bool Output::is_terminal() {
  if (::isatty(STDOUT_FILENO) != 1) return false;
  if (!strata::launched_by_mpi()) return true;
  std::error_code error;
  const auto target =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", ::getppid()), error);
  return !error &&
         (target.string().starts_with("/dev/pts/") || target.string().starts_with("/dev/tty"));
}

unsigned Output::width() {
  constexpr unsigned kUsual = 80;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

}  // namespace train_gpt
