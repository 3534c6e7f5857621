#include "support/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

namespace strata::test {
namespace {

// How often a condition outside this process is looked at.
constexpr std::chrono::milliseconds kPoll{5};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Only async-signal-safe calls: between fork and exec.
void become(const std::vector<char*>& argv, const char* directory, const char* out, const char* err,
            unsigned user) {
  const int out_fd = ::open(out, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int err_fd = ::open(err, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const bool ready = out_fd >= 0 && err_fd >= 0 && ::dup2(out_fd, STDOUT_FILENO) >= 0 &&
                     ::dup2(err_fd, STDERR_FILENO) >= 0 && ::chdir(directory) == 0 &&
                     ::setpgid(0, 0) == 0 && (user == 0 || ::setuid(user) == 0);
  if (ready) ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const ChildOptions& options)
    : captured_(options.stdout_path.empty()), begin_(std::chrono::steady_clock::now()) {
  static std::atomic<int> count{0};
  const std::string stem =
      fmt::format("{}/child-{}-{}", options.directory, ::getpid(), count.fetch_add(1));
  out_path_ = captured_ ? stem + ".out" : options.stdout_path;
  err_path_ = stem + ".err";
  std::vector<std::string> words = {"env"};
  words.insert(words.end(), options.environment.begin(), options.environment.end());
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) {
    become(argv, options.directory.c_str(), out_path_.c_str(), err_path_.c_str(), options.user);
  }
}

ChildProcess::~ChildProcess() {
  if (!running_) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
}

bool ChildProcess::try_reap() {
  if (running_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) running_ = false;
  return !running_;
}

std::string ChildProcess::output() const { return captured_ ? read_file(out_path_) : ""; }

bool ChildProcess::wait_for_output(const std::string& text, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (output().find(text) == std::string::npos) {
    if (try_reap() || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

ChildResult ChildProcess::wait(std::chrono::seconds limit) {
  ChildResult result;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!try_reap()) {
    if (std::chrono::steady_clock::now() > end) {
      result.timed_out = true;
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, &status_, 0);
      running_ = false;
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  result.duration = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin_);
  result.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  result.out = output();
  result.err = read_file(err_path_);
  return result;
}

ChildResult run_child(const std::vector<std::string>& command, const ChildOptions& options,
                      std::chrono::seconds limit) {
  return ChildProcess(command, options).wait(limit);
}

std::vector<pid_t> children_of(pid_t parent, const std::string& name) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string number = entry.path().filename().string();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    // "pid (name) state parent ..." (man 5 proc); the kernel cuts names at 15 characters.
    std::istringstream stat(read_file(entry.path().string() + "/stat"));
    std::string pid, program, state;
    pid_t its_parent = 0;
    stat >> pid >> program >> state >> its_parent;
    if (its_parent == parent && program == "(" + name + ")") found.push_back(std::stoi(number));
  }
  return found;
}

}  // namespace strata::test
