#include "base/cpus.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/process_identity.hpp"

namespace strata {
namespace {

// Far above any kernel's NR_CPUS: bounds what a damaged list or an odd errno can make us do.
constexpr unsigned kMostCpuNumber = 1U << 16;

template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

void sort_unique(CpuSet& cpus) {
  std::ranges::sort(cpus);
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
}

}  // namespace

CpuSet parse_cpu_list(std::string_view text) {
  CpuSet cpus;
  do {
    const auto first = take_number<unsigned>(text);
    if (!first) break;
    const auto last = take(text, '-') ? take_number<unsigned>(text) : first;
    if (!last || *last > kMostCpuNumber) break;
    for (unsigned cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  } while (take(text, ','));
  sort_unique(cpus);
  return cpus;
}

std::string format_cpu_list(const CpuSet& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += fmt::format("{}", cpus[i]);
    if (last > i) text += fmt::format("-{}", cpus[last]);
    i = last + 1;
  }
  return text;
}

// cpu_set_t has 1024 bits; several in a row make a longer mask (CPU_SET(3), "dynamically sized").
CpuSet cpus_of_this_thread() {
  for (std::size_t sets = 1; sets * CPU_SETSIZE <= kMostCpuNumber; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const std::size_t size_bytes = sets * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, size_bytes, mask.data()) == 0) {
      CpuSet cpus;
      for (unsigned cpu = 0; cpu < sets * CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET_S(cpu, size_bytes, mask.data())) cpus.push_back(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;  // EINVAL: the kernel's masks are longer
  }
  return {};
}

int keep_thread_on(pthread_t thread, const CpuSet& cpus) {
  if (cpus.empty()) return EINVAL;
  std::vector<cpu_set_t> mask(cpus.back() / CPU_SETSIZE + 1);
  const std::size_t size_bytes = mask.size() * sizeof(cpu_set_t);
  for (const unsigned cpu : cpus) CPU_SET_S(cpu, size_bytes, mask.data());
  return ::pthread_setaffinity_np(thread, size_bytes, mask.data());
}

ThreadOnCpus::ThreadOnCpus(const CpuSet& cpus) {
  if (cpus.empty()) return;
  before_ = cpus_of_this_thread();
  if (keep_thread_on(::pthread_self(), cpus) != 0) before_.clear();
}

ThreadOnCpus::~ThreadOnCpus() {
  if (!before_.empty()) keep_thread_on(::pthread_self(), before_);
}

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// By CPU; a CPU that no node lists is left out.
std::map<unsigned, unsigned> nodes_of_cpus(const std::string& root) {
  std::map<unsigned, unsigned> nodes;
  const std::string directory = root + "/sys/devices/system/node";
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::string_view number = name;
    if (!number.starts_with("node")) continue;
    number.remove_prefix(4);
    const auto node = take_number<unsigned>(number);
    if (!node || !number.empty()) continue;
    for (const unsigned cpu : parse_cpu_list(first_line(entry->path() / "cpulist"))) {
      nodes[cpu] = *node;
    }
  }
  return nodes;
}

unsigned core_of(const std::string& root, unsigned cpu) {
  const CpuSet siblings = parse_cpu_list(first_line(
      fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", root, cpu)));
  return std::ranges::binary_search(siblings, cpu) ? siblings.front() : cpu;
}

// Of CPU time per period, in whole CPUs; nothing where there is no limit.
std::optional<unsigned> quota_of(std::string_view quota_text, std::string_view period_text) {
  const auto quota = take_number<std::int64_t>(quota_text);
  const auto period = take_number<std::int64_t>(period_text);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<unsigned>(std::clamp<std::int64_t>(*quota / *period, 1, kMostCpuNumber));
}

// Version 2: "<quota or max> <period>". Version 1: two files, a quota of -1 for none.
std::optional<unsigned> quota_in(const std::string& directory, bool version2) {
  if (!version2) {
    return quota_of(first_line(directory + "/cpu.cfs_quota_us"),
                    first_line(directory + "/cpu.cfs_period_us"));
  }
  const std::string line = first_line(directory + "/cpu.max");
  const std::size_t space = line.find(' ');
  if (space == std::string::npos) return std::nullopt;
  return quota_of(line, std::string_view(line).substr(space + 1));
}

// A group is bound by its own quota and those of all groups around it. In a container without a
// namespace for control groups, `path` is the host's and does not exist below `mount`, whose root
// then is the container's group; leaving out what cannot be read covers that.
void take_least_quota(const std::string& mount, std::string path, bool version2, CpuFacts& facts) {
  if (path == "/") path.clear();
  for (;;) {
    const std::string directory = mount + path;
    const auto quota = quota_in(directory, version2);
    // Of two that are equal the outer one, which more processes share.
    if (quota && (facts.quota_cpus == 0 || *quota <= facts.quota_cpus)) {
      facts.quota_cpus = *quota;
      struct stat status {};
      if (::stat(directory.c_str(), &status) == 0) facts.quota_group = status.st_ino;
    }
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return;
    path.erase(slash);
  }
}

// Looks where every distribution mounts control groups. Lines are "<id>:<controllers>:<path>",
// cgroups(7); those of version 2 have no controllers.
void read_quota(const std::string& root, CpuFacts& facts) {
  std::ifstream file(root + "/proc/self/cgroup");
  const std::string mounts = root + "/sys/fs/cgroup";
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      take_least_quota(mounts, path, true, facts);
      take_least_quota(mounts + "/unified", path, true, facts);  // beside version 1
    } else if (fmt::format(",{},", controllers).find(",cpu,") != std::string::npos) {
      take_least_quota(fmt::format("{}/{}", mounts, controllers), path, false, facts);
      take_least_quota(mounts + "/cpu", path, false, facts);
    }
  }
}

}  // namespace

CpuFacts read_cpu_facts(const std::string& root, const CpuSet& allowed) {
  CpuFacts facts;
  const auto nodes = nodes_of_cpus(root);
  for (const unsigned cpu : allowed) {
    const auto node = nodes.find(cpu);
    facts.allowed.push_back({.number = cpu,
                             .node = node == nodes.end() ? 0 : node->second,
                             .core = core_of(root, cpu)});
  }
  read_quota(root, facts);
  return facts;
}

CpuClaim claim_of(const CpuFacts& facts, std::uint32_t local_rank) {
  CpuClaim claim;
  const ProcessIdentity self = identify_this_process();
  static_assert(sizeof claim.host == sizeof self.host);
  std::memcpy(claim.host, self.host, sizeof claim.host);
  claim.quota_group = facts.quota_group;
  claim.local_rank = local_rank;
  for (const CpuFacts::Cpu& cpu : facts.allowed) {
    if (cpu.number < CpuClaim::kMostCpus) {
      claim.mask[cpu.number / 64] |= std::uint64_t{1} << (cpu.number % 64);
    }
  }
  return claim;
}

namespace {

using Cpus = std::vector<CpuFacts::Cpu>;

// The ranks that divide something, and this one's position among them.
struct Sharing {
  std::uint32_t ranks = 1;
  std::uint32_t position = 0;
};

bool on_one_host(const CpuClaim& a, const CpuClaim& b) {
  return std::memcmp(a.host, b.host, sizeof a.host) == 0;
}

template <class Shares>
Sharing ranks_sharing(std::span<const CpuClaim> claims, std::uint32_t rank, const Shares& shares) {
  // GPUs are numbered by local rank, and along the nodes as a rule.
  const auto order = [&](std::uint32_t r) { return std::pair(claims[r].local_rank, r); };
  Sharing result{.ranks = 0};
  for (std::uint32_t r = 0; r < claims.size(); ++r) {
    if (!on_one_host(claims[r], claims[rank]) || !shares(claims[r], claims[rank])) continue;
    ++result.ranks;
    if (order(r) < order(rank)) ++result.position;
  }
  return result;
}

std::size_t count_cores(const Cpus& cpus) {
  CpuSet cores;
  for (const CpuFacts::Cpu& cpu : cpus) cores.push_back(cpu.core);
  sort_unique(cores);
  return cores.size();
}

// Where, among the pieces that ranks take whole, each node begins, and one past the last.
struct Pieces {
  std::vector<std::size_t> begin;         // index of a CPU, for each piece; then that of the end
  std::vector<std::size_t> node_borders;  // indices of pieces
};

Pieces pieces_of(const Cpus& cpus, bool whole_cores) {
  Pieces pieces;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    const bool new_node = i == 0 || cpus[i].node != cpus[i - 1].node;
    const bool new_core = new_node || cpus[i].core != cpus[i - 1].core;
    if (new_node) pieces.node_borders.push_back(pieces.begin.size());
    if (new_core || !whole_cores) pieces.begin.push_back(i);
  }
  pieces.begin.push_back(cpus.size());
  return pieces;
}

// Equal parts, but a border between nodes that is near (a quarter of a part) is worth more than
// one core's difference: memory of the other node is slower for all workers.
std::size_t cut(const Pieces& pieces, std::uint32_t index, std::uint32_t ranks) {
  const std::size_t count = pieces.begin.size() - 1;
  const std::size_t equal = index * count / ranks;
  const std::size_t slack = count / ranks / 4;
  std::size_t best = equal;
  std::size_t best_distance = slack + 1;
  for (const std::size_t border : pieces.node_borders) {
    const std::size_t distance = border > equal ? border - equal : equal - border;
    if (distance < best_distance) {
      best = border;
      best_distance = distance;
    }
  }
  return index == 0 || index == ranks ? equal : best;
}

// Ordered along nodes and cores. Pre: as many CPUs as ranks.
Cpus part_of(const Cpus& cpus, const Sharing& sharing) {
  const Pieces pieces = pieces_of(cpus, sharing.ranks <= count_cores(cpus));
  const auto at = [&](std::uint32_t index) {
    return cpus.begin() +
           static_cast<std::ptrdiff_t>(pieces.begin[cut(pieces, index, sharing.ranks)]);
  };
  return {at(sharing.position), at(sharing.position + 1)};
}

unsigned automatic_workers(const CpuFacts& facts, const Cpus& part, std::uint32_t sharing_part,
                           std::uint32_t sharing_quota) {
  std::size_t usable = count_cores(part) / sharing_part;
  if (facts.quota_cpus != 0) {
    usable = std::min<std::size_t>(usable, facts.quota_cpus / sharing_quota);
  }
  return static_cast<unsigned>(
      std::clamp<std::size_t>(usable, 2, kMostAutomaticWorkers + std::size_t{1}) - 1);
}

std::string count_of(std::uint64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

// The set behind its name: "CPUs 0-3".
std::string named(std::string_view name, const CpuSet& numbers) {
  return fmt::format("{}{} {}", name, numbers.size() == 1 ? "" : "s", format_cpu_list(numbers));
}

std::string excess(unsigned wanted, std::uint32_t ranks, std::uint64_t cpus) {
  const std::string workers = count_of(wanted, "worker");
  const std::string limit = count_of(cpus, "CPU");
  if (ranks == 1) return fmt::format("{} are more than the {}", workers, limit);
  return fmt::format("{} x {} are more than the {}", workers, count_of(ranks, "rank"), limit);
}

std::string warning_about(unsigned wanted, const CpuFacts& facts, std::uint32_t sharing_cpus,
                          std::uint32_t sharing_quota) {
  const auto exceeds = [&](std::uint32_t ranks, std::uint64_t cpus) {
    return cpus != 0 && std::uint64_t{wanted} * ranks > cpus;
  };
  if (exceeds(sharing_cpus, facts.allowed.size())) {
    return fmt::format(
        "{} that they may run on; lower engine.workers (0: automatic) or bind to more CPUs",
        excess(wanted, sharing_cpus, facts.allowed.size()));
  }
  if (exceeds(sharing_quota, facts.quota_cpus)) {
    return fmt::format(
        "{} that the control group grants; lower engine.workers (0: automatic) or raise its quota",
        excess(wanted, sharing_quota, facts.quota_cpus));
  }
  return {};
}

}  // namespace

WorkerPlan plan_workers(const CpuFacts& facts, std::span<const CpuClaim> claims, std::uint32_t rank,
                        unsigned wanted) {
  const Sharing cpus = ranks_sharing(
      claims, rank, [](const CpuClaim& a, const CpuClaim& b) { return a.mask == b.mask; });
  const Sharing quota = ranks_sharing(claims, rank, [](const CpuClaim& a, const CpuClaim& b) {
    return a.quota_group == b.quota_group;
  });
  Cpus part = facts.allowed;
  std::ranges::sort(part, {}, [](const CpuFacts::Cpu& cpu) {
    return std::tuple(cpu.node, cpu.core, cpu.number);
  });
  const bool divided = cpus.ranks <= part.size();
  if (divided) part = part_of(part, cpus);

  WorkerPlan plan;
  plan.count =
      wanted != 0 ? wanted : automatic_workers(facts, part, divided ? 1 : cpus.ranks, quota.ranks);
  CpuSet nodes;
  for (const CpuFacts::Cpu& cpu : part) {
    plan.cpus.push_back(cpu.number);
    nodes.push_back(cpu.node);
  }
  std::ranges::sort(plan.cpus);
  sort_unique(nodes);
  plan.summary = count_of(plan.count, "worker");
  if (!part.empty()) {
    plan.summary += fmt::format(" on {} ({})", named("CPU", plan.cpus), named("NUMA node", nodes));
    if (!divided) plan.summary += fmt::format(", which {} ranks share", cpus.ranks);
  }
  if (facts.quota_cpus != 0) {
    plan.summary += fmt::format("; the control group grants {}", count_of(facts.quota_cpus, "CPU"));
  }
  if (wanted != 0) plan.warning = warning_about(wanted, facts, cpus.ranks, quota.ranks);
  return plan;
}

}  // namespace strata
