#include "support/loop_file_system.hpp"

#include <fmt/format.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/vfs.h>

#include <cstdio>
#include <filesystem>

#include "base/check.hpp"

namespace strata::test {
namespace {

struct Outcome {
  bool ok = false;
  std::string output;  // the last line, without its end
};

Outcome run(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {.ok = false, .output = "popen failed"};
  Outcome outcome;
  char line[512];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) outcome.output = line;
  while (outcome.output.ends_with('\n')) outcome.output.pop_back();
  outcome.ok = ::pclose(pipe) == 0;
  return outcome;
}

bool is_on_disk(const std::string& directory) {
  struct statfs system {};
  return ::statfs(directory.c_str(), &system) == 0 && system.f_type != TMPFS_MAGIC &&
         system.f_type != RAMFS_MAGIC;
}

std::string disk_directory() {
  const char* named = std::getenv("TMPDIR");
  const std::string temporary = named != nullptr ? named : "/tmp";
  return is_on_disk(temporary) ? temporary : std::filesystem::current_path().string();
}

}  // namespace

ScratchDirectory::ScratchDirectory(const std::string& parent) : path_(parent + "/strata-XXXXXX") {
  STRATA_ASSERT(::mkdtemp(path_.data()) != nullptr, fmt::format("mkdtemp below {}", parent));
}

ScratchDirectory::ScratchDirectory() : ScratchDirectory(disk_directory()) {}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

LoopFileSystem::LoopFileSystem(const std::string& parent) : scratch_(parent) {}

std::unique_ptr<LoopFileSystem> LoopFileSystem::mount(const Options& options,
                                                      std::string& why_not) {
  std::unique_ptr<LoopFileSystem> system(
      new LoopFileSystem(options.parent.empty() ? disk_directory() : options.parent));
  return system->set_up(options, why_not) ? std::move(system) : nullptr;
}

bool LoopFileSystem::set_up(const Options& options, std::string& why_not) {
  const std::string image = scratch_.path() + "/image";
  std::filesystem::create_directory(path());
  const auto step = [&](const std::string& command) {
    const Outcome outcome = run("PATH=$PATH:/usr/sbin:/sbin " + command);
    if (!outcome.ok) why_not = fmt::format("'{}' failed: {}", command, outcome.output);
    return outcome;
  };
  if (!step(fmt::format("truncate -s {} {}", options.size.value, image)).ok) return false;
  const Outcome loop = step(fmt::format("losetup -f --show -b {} {}", options.sector.value, image));
  if (!loop.ok) return false;
  loop_device_ = loop.output;
  if (!step(fmt::format("mkfs.ext4 -q -m 0 -b 4096 {}", loop_device_)).ok) return false;
  mounted_ = step(fmt::format("mount -t ext4 -o {} {} {}", options.read_only ? "ro" : "rw",
                              loop_device_, path()))
                 .ok;
  return mounted_;
}

LoopFileSystem::~LoopFileSystem() {
  const auto tidy = [](const std::string& command) {
    const Outcome outcome = run("PATH=$PATH:/usr/sbin:/sbin " + command);
    if (!outcome.ok) std::fprintf(stderr, "%s: %s\n", command.c_str(), outcome.output.c_str());
  };
  // A ring of a process that has just ended keeps its files for a moment.
  if (mounted_) {
    tidy(
        fmt::format("sh -c 'for i in $(seq 40); do umount {0} 2>/dev/null && exit; sleep 0.05; "
                    "done; umount -l {0}'",
                    path()));
  }
  if (!loop_device_.empty()) tidy(fmt::format("losetup -d {}", loop_device_));
}

}  // namespace strata::test
