// CPUs: which ones this process may use, how they hang together (NUMA nodes, SMT siblings), what
// the control group grants, and which of them the workers of a rank get, so that the ranks of one
// host do not crowd each other. Reading is apart from deciding: plan_workers() computes.
// Thread: any. Nothing throws but for lack of memory.
#pragma once

#include <pthread.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

// The kernel's numbers, ascending, each once.
using CpuSet = std::vector<unsigned>;

// As the kernel writes sets: "0-3,8,10-11". What is no number of a CPU ends the list.
CpuSet parse_cpu_list(std::string_view text);
std::string format_cpu_list(const CpuSet& cpus);

// Where the kernel lets the calling thread run; empty when it does not say.
CpuSet cpus_of_this_thread();
// Returns 0, or errno: EINVAL when the process may use none of `cpus`.
int keep_thread_on(pthread_t thread, const CpuSet& cpus);

// Keeps the calling thread on `cpus` until the end of the scope, as far as the kernel agrees.
// Pages that it touches first then lie on the NUMA nodes of these CPUs. Empty: changes nothing.
class ThreadOnCpus {
 public:
  explicit ThreadOnCpus(const CpuSet& cpus);
  ~ThreadOnCpus();
  ThreadOnCpus(const ThreadOnCpus&) = delete;
  ThreadOnCpus& operator=(const ThreadOnCpus&) = delete;

 private:
  CpuSet before_;
};

struct CpuFacts {
  struct Cpu {
    unsigned number = 0;
    unsigned node = 0;  // NUMA node
    unsigned core = 0;  // lowest number among its SMT siblings
    bool operator==(const Cpu&) const = default;
  };
  std::vector<Cpu> allowed;
  unsigned quota_cpus = 0;        // CPU time that the control group grants; 0: no limit
  std::uint64_t quota_group = 0;  // which control group: processes of one share the quota

  bool operator==(const CpuFacts&) const = default;
};

// What /sys and /proc below `root` ("": the machine's own) say about the CPUs `allowed`. What they
// do not say is one node, no siblings and no limit. A quota is rounded down, to no less than one.
CpuFacts read_cpu_facts(const std::string& root, const CpuSet& allowed);

// What a rank tells the others about itself: plain bytes.
struct CpuClaim {
  static constexpr std::size_t kMostCpus = 8192;  // the largest NR_CPUS of Linux

  char host[64] = {};  // the same on one kernel only, whatever containers there are
  std::uint64_t quota_group = 0;
  std::uint64_t local_rank = 0;
  std::array<std::uint64_t, kMostCpus / 64> mask = {};  // bit n % 64 of word n / 64: CPU n
};

CpuClaim claim_of(const CpuFacts& facts, std::uint32_t local_rank);

struct WorkerPlan {
  unsigned count = 1;
  CpuSet cpus;          // all workers may run on all of these; empty: where the kernel likes
  std::string summary;  // "2 workers on CPUs 0-1 (NUMA node 0)"
  std::string warning;  // empty: none
};

// `claims` are those of all ranks, `rank` is this one's place among them; `wanted` is
// engine.workers.
//
// Ranks of a host that may use the same CPUs divide them: contiguous parts along NUMA nodes that
// keep siblings together. A rank whose CPUs are its own keeps them, for a launcher has bound it. So
// the masks decide, and not a guess about the launcher: with `--bind-to numa`, the ranks of a node
// divide that node. More ranks than CPUs share all of them, since the kernel then balances better
// than any fixed division.
//
// Automatic (0): a worker for each core of the part, since siblings share what workers are short of
// (vector units, bandwidth), less one core for the threads of the engine and the trainer; within
// this rank's share of the quota, which is CPU time that all threads draw on; and at most
// kMostAutomaticWorkers.
WorkerPlan plan_workers(const CpuFacts& facts, std::span<const CpuClaim> claims, std::uint32_t rank,
                        unsigned wanted);

// Checksums and updates stream through memory, several GB/s for each core, which about this many
// cores take up on a socket. From files fewer are busy: three tiles of each class are in flight.
inline constexpr unsigned kMostAutomaticWorkers = 16;

}  // namespace strata
