#include "record.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <span>
#include <type_traits>

#include "trainer.hpp"

namespace train_gpt {
namespace {

using strata::MemoryPurpose;
using strata::Tier;

LinkNumbers links_of(const strata::LinkBytes& bytes) {
  return {bytes.nvme_read.value, bytes.nvme_written.value, bytes.host_to_device.value,
          bytes.device_to_host.value};
}

TierNumbers tier_of(const strata::Session& session, Tier tier) {
  const strata::TierUsage usage = session.usage(tier);
  const strata::MemoryPlan& plan = session.memory_plan();
  return {usage.budget.value, plan.total(tier).value, usage.reserved.value, usage.peak_in_use.value,
          plan.total(tier, MemoryPurpose::at_rest).value};
}

}  // namespace

OsCounters read_os_counters() {
  OsCounters counters;
  std::ifstream file("/proc/self/io");
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "read_bytes:") counters.read_bytes = value;
    if (key == "write_bytes:") counters.written_bytes = value;
  }
  return counters;
}

std::uint64_t peak_rss_bytes() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  constexpr std::uint64_t kUnit = 1024;  // man 2 getrusage: ru_maxrss is in KiB
  return static_cast<std::uint64_t>(usage.ru_maxrss) * kUnit;
}

RankNumbers numbers_of_rank(strata::Session& session, const Options& options,
                            const strata::LinkBytes& step_bytes, const OsCounters& os_at_open) {
  const OsCounters os = read_os_counters();
  const strata::LinkBytes total = session.bytes_moved();
  RankNumbers numbers;
  numbers.pid = ::getpid();
  numbers.session_bytes = links_of(total);
  numbers.step_bytes = links_of(step_bytes);
  numbers.gathered = total.gathered.value;
  numbers.reduced = total.reduced.value;
  numbers.os_read_bytes = os.read_bytes - os_at_open.read_bytes;
  numbers.os_written_bytes = os.written_bytes - os_at_open.written_bytes;
  numbers.peak_rss_bytes = peak_rss_bytes();
  numbers.device_scratch = session.memory_plan().total(Tier::device, MemoryPurpose::scratch).value;
  numbers.host_scratch = session.memory_plan().total(Tier::host, MemoryPurpose::scratch).value;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    numbers.tiers[static_cast<std::size_t>(tier)] = tier_of(session, tier);
  }
  const std::uint32_t sweeps = options.vertical ? 1 : options.accumulation;
  // Side by side, all but one batch's inputs are brought back by the next block's forward as well.
  const bool twice = options.vertical && options.accumulation > 1;
  numbers.floor = session.byte_floor(sweeps, {.stashed = sweeps, .unstashed = twice ? 2 : sweeps});
  return numbers;
}

std::vector<RankNumbers> gather_numbers(strata::Communicator& communicator,
                                        const RankNumbers& mine) {
  static_assert(std::is_trivially_copyable_v<RankNumbers>);
  const auto bytes = communicator.exchange(std::as_bytes(std::span(&mine, 1)));
  std::vector<RankNumbers> all(communicator.size());
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

}  // namespace train_gpt
