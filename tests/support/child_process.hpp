// Programs as a user starts them, for tests of whole programs: runs one with a time limit and
// returns how it ended and what it wrote. Output goes to files, so that no pipe can fill up.
// Ownership: a child that still runs is killed, with its process group, by the destructor.
// Thread: one at a time.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace strata::test {

struct ChildOptions {
  std::string directory = ".";           // where it runs and where its output files lie
  std::vector<std::string> environment;  // "NAME=value", added to ours
  std::string stdout_path;               // empty: captured
  unsigned user = 0;                     // run as this user id when we are root; 0: as ourselves
};

struct ChildResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  bool timed_out = false;
  std::string out, err;
  std::chrono::milliseconds duration{};
};

class ChildProcess {
 public:
  // Throws std::system_error.
  ChildProcess(const std::vector<std::string>& command, const ChildOptions& options);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // What it has written to stdout so far, if that is captured.
  std::string output() const;

  // Waits until stdout holds `text`; false when it ended or `limit` passed before.
  bool wait_for_output(const std::string& text, std::chrono::seconds limit);

  // Waits for its end; kills it after `limit`.
  ChildResult wait(std::chrono::seconds limit);

 private:
  bool try_reap();

  pid_t pid_ = -1;
  bool running_ = true;
  int status_ = 0;
  const bool captured_;
  std::string out_path_, err_path_;
  std::chrono::steady_clock::time_point begin_;
};

ChildResult run_child(const std::vector<std::string>& command, const ChildOptions& options,
                      std::chrono::seconds limit);

// Process ids of the direct children of `parent` whose program is called `name`.
std::vector<pid_t> children_of(pid_t parent, const std::string& name);

}  // namespace strata::test
