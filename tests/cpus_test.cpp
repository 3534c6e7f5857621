// CPUs: what a machine says about them, how ranks divide them, and threads that stay on them.
#include "base/cpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "engine/worker_pool.hpp"
#include "support/in_process_ranks.hpp"
#include "support/loop_file_system.hpp"
#include "support/simulated_disk.hpp"
#include "support/test_machine.hpp"
#include "support/toy_program.hpp"

namespace strata::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CpuSet range(unsigned first, unsigned last) {
  CpuSet cpus(last - first + 1);
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

CpuSet both(CpuSet a, const CpuSet& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::ranges::sort(a);
  return a;
}

TEST(CpuList, IsReadAsTheKernelWritesIt) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list("3,1-2,2"), ElementsAre(1, 2, 3));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("\n"), IsEmpty());
}

TEST(CpuList, EndsAtWhatIsNoCpu) {
  EXPECT_THAT(parse_cpu_list("1,x,2"), ElementsAre(1));
  EXPECT_THAT(parse_cpu_list("1,4-"), ElementsAre(1));
  EXPECT_THAT(parse_cpu_list("1,0-4294967295"), ElementsAre(1));
  EXPECT_THAT(parse_cpu_list("4-2"), IsEmpty());
}

TEST(CpuList, IsWrittenWithRanges) {
  EXPECT_EQ(format_cpu_list({}), "");
  EXPECT_EQ(format_cpu_list({7}), "7");
  EXPECT_EQ(format_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

// A directory that stands for "/".
class CpuMachine : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  void write_node(unsigned node, const std::string& cpus) const {
    write("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist", cpus);
  }
  void write_siblings(const CpuSet& siblings) const {
    for (const unsigned cpu : siblings) {
      write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
            format_cpu_list(siblings));
    }
  }
  CpuFacts facts(const CpuSet& allowed) const { return read_cpu_facts(root_, allowed); }
  unsigned quota() const { return facts({0}).quota_cpus; }

  const ScratchDirectory directory_;
  const std::string root_ = directory_.path();
};

TEST_F(CpuMachine, ThatSaysNothingHasOneNodeNoSiblingsAndNoLimit) {
  const CpuFacts found = facts({0, 1, 5});
  EXPECT_THAT(found.allowed,
              ElementsAre(CpuFacts::Cpu{0, 0, 0}, CpuFacts::Cpu{1, 0, 1}, CpuFacts::Cpu{5, 0, 5}));
  EXPECT_EQ(found.quota_cpus, 0U);
  EXPECT_EQ(found.quota_group, 0U);
}

TEST_F(CpuMachine, TellsNodesAndSiblings) {
  write_node(0, "0-1,4-5");
  write_node(1, "2-3,6-7");
  write_node(2, "");  // memory only
  write("/sys/devices/system/node/possible", "0-2");
  write("/sys/devices/system/node/nodes/cpulist", "0-7");
  for (unsigned cpu = 0; cpu < 4; ++cpu) write_siblings({cpu, cpu + 4});
  EXPECT_THAT(facts({1, 2, 5, 7}).allowed,
              ElementsAre(CpuFacts::Cpu{1, 0, 1}, CpuFacts::Cpu{2, 1, 2}, CpuFacts::Cpu{5, 0, 1},
                          CpuFacts::Cpu{7, 1, 3}));
}

TEST_F(CpuMachine, MayHaveMoreCpusThanAnOrdinaryMask) {
  write_node(0, "0-1023");
  write_node(1, "1024-2047");
  write_siblings({1500, 2000});
  const CpuFacts found = facts(range(0, 2047));
  ASSERT_EQ(found.allowed.size(), 2048U);
  EXPECT_EQ(found.allowed[1023], (CpuFacts::Cpu{1023, 0, 1023}));
  EXPECT_EQ(found.allowed[2000], (CpuFacts::Cpu{2000, 1, 1500}));
}

TEST_F(CpuMachine, QuotaOfVersion2IsRoundedDownButNotToNothing) {
  write("/proc/self/cgroup", "0::/job");
  EXPECT_EQ(quota(), 0U);
  write("/sys/fs/cgroup/job/cpu.max", "max 100000");
  EXPECT_EQ(quota(), 0U);
  write("/sys/fs/cgroup/job/cpu.max", "150000 100000");
  EXPECT_EQ(quota(), 1U);
  write("/sys/fs/cgroup/job/cpu.max", "50000 100000");
  EXPECT_EQ(quota(), 1U);
  write("/sys/fs/cgroup/job/cpu.max", "700000 100000");
  EXPECT_EQ(quota(), 7U);
}

TEST_F(CpuMachine, SmallestQuotaOfTheGroupsAroundWins) {
  write("/proc/self/cgroup", "0::/slice/job/task");
  write("/sys/fs/cgroup/slice/cpu.max", "800000 100000");
  const CpuFacts outer = facts({0});
  EXPECT_EQ(outer.quota_cpus, 8U);
  write("/sys/fs/cgroup/slice/job/cpu.max", "300000 100000");
  write("/sys/fs/cgroup/slice/job/task/cpu.max", "max 100000");
  const CpuFacts inner = facts({0});
  EXPECT_EQ(inner.quota_cpus, 3U);
  EXPECT_NE(inner.quota_group, outer.quota_group);
  write("/sys/fs/cgroup/slice/cpu.max", "300000 100000");
  EXPECT_EQ(facts({0}).quota_group, outer.quota_group) << "of equals, the one that more share";
}

TEST_F(CpuMachine, QuotaOfVersion1) {
  write("/proc/self/cgroup", "11:memory:/m\n4:cpu,cpuacct:/job\n1:name=systemd:/\n0::/");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota(), 0U);
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000");
  EXPECT_EQ(quota(), 2U);
}

TEST_F(CpuMachine, QuotaOfAContainerWhosePathIsThatOfTheHost) {
  write("/proc/self/cgroup", "3:cpu:/docker/0123abc");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota(), 4U);
}

TEST_F(CpuMachine, DamagedQuotasAreNone) {
  write("/proc/self/cgroup", "nonsense\n0:\n0::/");
  for (const char* text : {"", "150000", "0 100000", "100000 0", "-5 100000", "x y"}) {
    write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(quota(), 0U) << text;
  }
}

// Siblings numbered as Linux does on x86: first one of every core, then the others.
CpuFacts machine(unsigned nodes, unsigned cores_per_node, bool smt) {
  CpuFacts facts;
  const unsigned cores = nodes * cores_per_node;
  for (unsigned cpu = 0; cpu < cores * (smt ? 2 : 1); ++cpu) {
    facts.allowed.push_back(
        {.number = cpu, .node = cpu % cores / cores_per_node, .core = cpu % cores});
  }
  return facts;
}

CpuFacts only(const CpuFacts& facts, const CpuSet& cpus) {
  CpuFacts kept = facts;
  std::erase_if(kept.allowed, [&](const CpuFacts::Cpu& cpu) {
    return !std::ranges::binary_search(cpus, cpu.number);
  });
  return kept;
}

// What each of the ranks of one host gets.
std::vector<WorkerPlan> plans(const std::vector<CpuFacts>& ranks, unsigned wanted = 0) {
  std::vector<CpuClaim> claims;
  for (const CpuFacts& facts : ranks) {
    claims.push_back(claim_of(facts, static_cast<std::uint32_t>(claims.size())));
  }
  std::vector<WorkerPlan> result;
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    result.push_back(plan_workers(ranks[r], claims, r, wanted));
  }
  return result;
}

std::vector<CpuSet> sets(const std::vector<WorkerPlan>& plans) {
  std::vector<CpuSet> result;
  for (const WorkerPlan& plan : plans) result.push_back(plan.cpus);
  return result;
}

std::vector<WorkerPlan> plans_of_equals(const CpuFacts& facts, std::uint32_t ranks,
                                        unsigned wanted = 0) {
  return plans(std::vector<CpuFacts>(ranks, facts), wanted);
}

TEST(Workers, OfOneRankOnTwoCores) {
  const WorkerPlan plan = plans_of_equals(machine(1, 2, false), 1)[0];
  EXPECT_EQ(plan.count, 1U);
  EXPECT_EQ(plan.cpus, range(0, 1));
  EXPECT_EQ(plan.summary, "1 worker on CPUs 0-1 (NUMA node 0)");
  EXPECT_EQ(plan.warning, "");
}

TEST(Workers, AreOneForEachCoreLessOne) {
  const auto count = [](const CpuFacts& facts) { return plans_of_equals(facts, 1)[0].count; };
  EXPECT_EQ(count(machine(1, 1, false)), 1U);
  EXPECT_EQ(count(machine(1, 1, true)), 1U);
  EXPECT_EQ(count(machine(1, 8, false)), 7U);
  EXPECT_EQ(count(machine(1, 8, true)), 7U);
  EXPECT_EQ(count(machine(2, 32, true)), kMostAutomaticWorkers);
}

TEST(Workers, OfRanksWithOneMaskAreKeptApartAlongNodesAndCores) {
  const CpuFacts two_nodes = machine(2, 4, true);  // node 0: 0-3 and 8-11
  const auto two = plans_of_equals(two_nodes, 2);
  EXPECT_THAT(sets(two),
              ElementsAre(both(range(0, 3), range(8, 11)), both(range(4, 7), range(12, 15))));
  EXPECT_EQ(two[1].summary, "3 workers on CPUs 4-7,12-15 (NUMA node 1)");
  const auto four = plans_of_equals(two_nodes, 4);
  EXPECT_THAT(sets(four), ElementsAre(CpuSet{0, 1, 8, 9}, CpuSet{2, 3, 10, 11},
                                      CpuSet{4, 5, 12, 13}, CpuSet{6, 7, 14, 15}));
  EXPECT_EQ(four[0].count, 1U);
  EXPECT_EQ(plans_of_equals(two_nodes, 1)[0].summary, "7 workers on CPUs 0-15 (NUMA nodes 0-1)");
}

TEST(Workers, FollowNodesWhoseCpusAlternate) {
  CpuFacts facts;
  for (unsigned cpu = 0; cpu < 8; ++cpu) {
    facts.allowed.push_back({.number = cpu, .node = cpu % 2, .core = cpu});
  }
  EXPECT_THAT(sets(plans_of_equals(facts, 2)), ElementsAre(CpuSet{0, 2, 4, 6}, CpuSet{1, 3, 5, 7}));
}

TEST(Workers, StayOnTheirNodeWhenEqualPartsWouldCrossANearBorder) {
  // Seven cores of node 0 and nine of node 1.
  const CpuFacts facts = only(machine(2, 9, false), both(range(2, 8), range(9, 17)));
  EXPECT_THAT(sets(plans_of_equals(facts, 2)), ElementsAre(range(2, 8), range(9, 17)));
  // Three cores and thirteen: equal parts matter more.
  const CpuFacts uneven = only(machine(2, 13, false), both(range(0, 2), range(13, 25)));
  EXPECT_THAT(sets(plans_of_equals(uneven, 2)),
              ElementsAre(both(range(0, 2), range(13, 17)), range(18, 25)));
}

TEST(Workers, SetsAreDisjointAndCompleteWhateverTheNumbers) {
  for (const unsigned nodes : {1U, 2U, 4U}) {
    for (const unsigned cores : {1U, 3U, 8U}) {
      for (const bool smt : {false, true}) {
        const CpuFacts facts = machine(nodes, cores, smt);
        const auto cpus = static_cast<std::uint32_t>(facts.allowed.size());
        for (std::uint32_t ranks = 1; ranks <= cpus; ++ranks) {
          CpuSet all;
          for (const WorkerPlan& plan : plans_of_equals(facts, ranks)) {
            EXPECT_FALSE(plan.cpus.empty());
            EXPECT_GE(plan.cpus.size() * 2 + 1, cpus / ranks);
            all.insert(all.end(), plan.cpus.begin(), plan.cpus.end());
            if (ranks > nodes * cores) continue;
            for (const unsigned cpu : plan.cpus) {
              const unsigned sibling = (cpu + nodes * cores) % cpus;
              EXPECT_TRUE(std::ranges::binary_search(plan.cpus, sibling)) << "torn apart";
            }
          }
          std::ranges::sort(all);
          EXPECT_EQ(all, range(0, cpus - 1))
              << nodes << " nodes, " << cores << " cores, SMT " << smt << ", " << ranks << " ranks";
        }
      }
    }
  }
}

TEST(Workers, OfARankThatALauncherBoundKeepItsCpus) {
  const CpuFacts whole = machine(2, 4, false);
  const auto bound = plans({only(whole, range(0, 3)), only(whole, range(4, 7))});
  EXPECT_THAT(sets(bound), ElementsAre(range(0, 3), range(4, 7)));
  EXPECT_EQ(bound[0].count, 3U);
  const auto to_cores = plans({only(whole, {0}), only(whole, {1})});
  EXPECT_THAT(sets(to_cores), ElementsAre(CpuSet{0}, CpuSet{1}));
  EXPECT_EQ(to_cores[1].summary, "1 worker on CPU 1 (NUMA node 0)");
}

TEST(Workers, OfRanksBoundToNodesDivideTheirNode) {
  const CpuFacts whole = machine(2, 4, false);
  const CpuFacts node0 = only(whole, range(0, 3));
  const CpuFacts node1 = only(whole, range(4, 7));
  EXPECT_THAT(sets(plans({node0, node1, node0, node1})),
              ElementsAre(range(0, 1), range(4, 5), range(2, 3), range(6, 7)));
}

TEST(Workers, OfMoreRanksThanCpusShareThem) {
  const auto shared = plans_of_equals(machine(1, 2, false), 3);
  EXPECT_THAT(sets(shared), ElementsAre(range(0, 1), range(0, 1), range(0, 1)));
  EXPECT_EQ(shared[2].count, 1U);
  EXPECT_EQ(shared[2].summary, "1 worker on CPUs 0-1 (NUMA node 0), which 3 ranks share");
  EXPECT_EQ(shared[2].warning, "");
}

TEST(Workers, TakeCpusWithHolesInTheirNumbers) {
  const CpuFacts facts = only(machine(1, 16, false), {1, 3, 4, 9, 15});
  const auto two = plans_of_equals(facts, 2);
  EXPECT_THAT(sets(two), ElementsAre(CpuSet{1, 3}, CpuSet{4, 9, 15}));
  EXPECT_EQ(two[1].summary, "2 workers on CPUs 4,9,15 (NUMA node 0)");
}

TEST(Workers, OfManyCpusAreToldApartByTheWholeMask) {
  const CpuFacts whole = machine(2, 1024, false);
  EXPECT_THAT(sets(plans_of_equals(whole, 2)), ElementsAre(range(0, 1023), range(1024, 2047)));
  const CpuFacts low = only(whole, range(0, 1023));
  const CpuFacts high = only(whole, both(range(0, 1023), {2000}));
  EXPECT_THAT(sets(plans({low, high}))[0], range(0, 1023));
}

TEST(Workers, OfOtherHostsDoNotCount) {
  const CpuFacts facts = machine(1, 4, false);
  std::vector<CpuClaim> claims(3, claim_of(facts, 0));
  claims[1].host[0] ^= 1;
  claims[2].local_rank = 1;
  EXPECT_EQ(plan_workers(facts, claims, 0, 0).cpus, range(0, 1));
  EXPECT_EQ(plan_workers(facts, claims, 1, 0).cpus, range(0, 3));
  EXPECT_EQ(plan_workers(facts, claims, 2, 0).cpus, range(2, 3));
}

TEST(Workers, GoByTheLauncherNumbersOfRanks) {
  const CpuFacts facts = machine(1, 4, false);
  const std::vector<CpuClaim> claims = {claim_of(facts, 1), claim_of(facts, 0)};
  EXPECT_EQ(plan_workers(facts, claims, 0, 0).cpus, range(2, 3));
  EXPECT_EQ(plan_workers(facts, claims, 1, 0).cpus, range(0, 1));
}

TEST(Workers, StayWithinTheShareOfTheQuota) {
  CpuFacts facts = machine(1, 16, false);
  facts.quota_cpus = 6;
  facts.quota_group = 42;
  const WorkerPlan alone = plans_of_equals(facts, 1)[0];
  EXPECT_EQ(alone.count, 5U);
  EXPECT_EQ(alone.summary, "5 workers on CPUs 0-15 (NUMA node 0); the control group grants 6 CPUs");
  EXPECT_EQ(plans_of_equals(facts, 2)[0].count, 2U);
  EXPECT_EQ(plans_of_equals(facts, 8)[0].count, 1U);
  // Of two containers, each has its quota for itself.
  CpuFacts other = facts;
  other.quota_group = 43;
  EXPECT_EQ(plans({facts, other})[0].count, 5U);
}

TEST(Workers, AsManyAsWantedAndAWarningWhereTheyAreTooMany) {
  const CpuFacts facts = machine(1, 4, false);
  const WorkerPlan fits = plans_of_equals(facts, 2, 2)[0];
  EXPECT_EQ(fits.count, 2U);
  EXPECT_EQ(fits.warning, "");
  const WorkerPlan many = plans_of_equals(facts, 2, 3)[1];
  EXPECT_EQ(many.count, 3U);
  EXPECT_EQ(many.cpus, range(2, 3));
  EXPECT_EQ(many.warning,
            "3 workers x 2 ranks are more than the 4 CPUs that they may run on; lower "
            "engine.workers (0: automatic) or bind to more CPUs");
  EXPECT_THAT(plans_of_equals(only(facts, {2}), 1, 2)[0].warning,
              HasSubstr("2 workers are more than the 1 CPU that they may run on"));
}

TEST(Workers, AWarningWhereTheQuotaIsTooSmall) {
  CpuFacts facts = machine(1, 8, false);
  facts.quota_cpus = 2;
  EXPECT_EQ(plans_of_equals(facts, 1, 2)[0].warning, "");
  EXPECT_EQ(plans_of_equals(facts, 1, 3)[0].warning,
            "3 workers are more than the 2 CPUs that the control group grants; lower "
            "engine.workers (0: automatic) or raise its quota");
}

TEST(Workers, RunWhereTheKernelLikesIfItDoesNotSayWhere) {
  const WorkerPlan plan = plans_of_equals(CpuFacts{}, 2)[0];
  EXPECT_EQ(plan.count, 1U);
  EXPECT_THAT(plan.cpus, IsEmpty());
  EXPECT_EQ(plan.summary, "1 worker");
  EXPECT_EQ(plans_of_equals(CpuFacts{}, 2, 3)[0].warning, "");
}

TEST(ThisThread, StaysOnCpusUntilTheEndOfTheScope) {
  const CpuSet before = cpus_of_this_thread();
  ASSERT_FALSE(before.empty());
  {
    const ThreadOnCpus kept({before.back()});
    EXPECT_THAT(cpus_of_this_thread(), ElementsAre(before.back()));
    EXPECT_EQ(::sched_getcpu(), static_cast<int>(before.back()));
  }
  EXPECT_EQ(cpus_of_this_thread(), before);
  { const ThreadOnCpus anywhere({}); }
  { const ThreadOnCpus nowhere({60'000}); }
  EXPECT_EQ(cpus_of_this_thread(), before);
}

// Jobs that meet, so that every worker has one, and tell where they may run.
class Meeting {
 public:
  explicit Meeting(std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) jobs_.push_back(std::make_unique<Place>(*this));
  }

  std::vector<CpuSet> hold(WorkerPool& workers) {
    for (const auto& job : jobs_) workers.submit(*job);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_ == jobs_.size(); });
    std::vector<CpuSet> places;
    for (const auto& job : jobs_) places.push_back(job->cpus);
    return places;
  }

 private:
  struct Place final : Job {
    explicit Place(Meeting& its_meeting) : Job({}), meeting(its_meeting) {}
    virtual ~Place() = default;
    void run() override {
      cpus = cpus_of_this_thread();
      std::unique_lock lock(meeting.mutex_);
      ++meeting.present_;
      meeting.changed_.notify_all();
      meeting.changed_.wait(lock, [this] { return meeting.present_ == meeting.jobs_.size(); });
    }
    void done() override {
      const std::scoped_lock lock(meeting.mutex_);
      ++meeting.done_;
      meeting.changed_.notify_all();
    }
    Meeting& meeting;
    CpuSet cpus;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Place>> jobs_;
  std::size_t present_ = 0;
  std::size_t done_ = 0;
};

TEST(WorkerPoolOnCpus, KeepsEveryThreadOnTheSet) {
  const CpuSet mine = cpus_of_this_thread();
  for (const CpuSet& cpus : {CpuSet{mine.back()}, mine}) {
    WorkerPool workers(2, cpus, [](LogLevel, std::string_view text) { ADD_FAILURE() << text; });
    EXPECT_THAT(Meeting(2).hold(workers), ElementsAre(cpus, cpus));
  }
  EXPECT_EQ(cpus_of_this_thread(), mine);
}

TEST(WorkerPoolOnCpus, WithoutASetRunsWhereTheCallerMay) {
  const CpuSet mine = cpus_of_this_thread();
  WorkerPool workers(2);
  EXPECT_THAT(Meeting(2).hold(workers), ElementsAre(mine, mine));
}

TEST(WorkerPoolOnCpus, TellsOnceOfASetThatIsForbiddenAndWorks) {
  const CpuSet mine = cpus_of_this_thread();
  std::vector<std::string> told;
  WorkerPool workers(3, {60'000, 60'001}, [&](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::warning);
    told.emplace_back(text);
  });
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("60000-60001"), HasSubstr("Invalid argument"),
                                      HasSubstr("cpuset"))));
  EXPECT_THAT(Meeting(3).hold(workers), ElementsAre(mine, mine, mine));
}

// Whole sessions: what each rank tells when it opens.
std::vector<std::vector<std::string>> told_by_ranks(std::uint32_t ranks, unsigned wanted) {
  Config config = toy_config(kHost, kHost, kNvme);
  config.engine.workers = wanted;
  const CpuSet mine = cpus_of_this_thread();
  TestMachine machine(ranks);
  std::vector<std::vector<std::string>> told(ranks);
  run_ranks(ranks, [&](Rank rank, Communicator&) {
    Backends backends = machine.backends(rank, config);
    backends.block_io = std::make_unique<SimulatedDisk>(
        SimulatedDisk::Options{.delivery = SimulatedDisk::Delivery::background});
    const auto note = [&](LogLevel, std::string_view text) {
      if (text.find("worker") != std::string_view::npos) told[rank.value].emplace_back(text);
    };
    const Session session = Session::open(toy_model({}), config, std::move(backends),
                                          {.device_scratch = {}, .host_scratch = {}, .log = note});
    EXPECT_EQ(cpus_of_this_thread(), mine) << "the caller's thread is the caller's";
  });
  return told;
}

// From "... on CPUs 0-1 (NUMA ...": the set.
CpuSet told_set(const std::string& line) {
  const std::size_t at = line.find(" on CPU");
  const std::size_t digit = line.find_first_of("0123456789", at);
  return at == std::string::npos ? CpuSet{} : parse_cpu_list(line.substr(digit));
}

TEST(SessionWorkers, OfRanksOfOneHostAreKeptApart) {
  const CpuSet mine = cpus_of_this_thread();
  const auto told = told_by_ranks(2, 0);
  CpuSet all;
  for (const auto& lines : told) {
    ASSERT_EQ(lines.size(), 1U);
    const CpuSet cpus = told_set(lines[0]);
    ASSERT_FALSE(cpus.empty()) << lines[0];
    all.insert(all.end(), cpus.begin(), cpus.end());
  }
  if (mine.size() == 1) return;  // shared, and so told twice
  std::ranges::sort(all);
  EXPECT_EQ(all, mine);
}

TEST(SessionWorkers, ThatAreTooManyAreToldToEveryRank) {
  const auto wanted = static_cast<unsigned>(cpus_of_this_thread().size() + 1);
  for (const auto& lines : told_by_ranks(2, wanted)) {
    EXPECT_THAT(lines, ElementsAre(HasSubstr(std::to_string(wanted) + " workers on CPU"),
                                   HasSubstr("lower engine.workers")));
  }
}

}  // namespace
}  // namespace strata::test
