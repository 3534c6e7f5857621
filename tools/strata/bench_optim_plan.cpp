#include "bench_optim_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "strata/bytes.hpp"
#include "strata/error.hpp"
#include "thread_team.hpp"

namespace strata::tool {
namespace {

// Gradient, its widened copy, weights and two moments in fp32, a parameter in 16 bits.
constexpr Bytes kArrayBytesPerParam{5 * 4 + 2};
constexpr Bytes kMostArrayBytes = 1536_MiB;
constexpr std::uint64_t kMostStreamedParams = 32 << 20;

std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> cases;
  for (const UpdateRule rule : kUpdateRules) cases.push_back({.rule = rule});
  cases.push_back({.gradient = DType::fp16, .param = DType::fp16});
  cases.push_back({.gradient = DType::fp32, .param = {}});
  cases.push_back({.gradient = DType::fp32, .param = DType::bf16});
  cases.push_back({.moments = DType::bf16});
  cases.push_back({.weights = DType::bf16, .param = {}});
  return cases;
}

std::uint64_t params_of(const BenchOptimOptions& options, Bytes available) {
  if (!options.params) {
    const Bytes room = std::min(kMostArrayBytes, available / 4);
    const std::uint64_t params = room / kArrayBytesPerParam;
    return std::max(kChunkElems, params / kChunkElems * kChunkElems);
  }
  if (*options.params == 0) {
    throw Error(ErrorCode::invalid_argument, "--params 0 is nothing to update; use 1 or more");
  }
  if (const std::uint64_t most = available / kArrayBytesPerParam; *options.params > most) {
    throw Error(ErrorCode::budget_exceeded,
                fmt::format("--params {} is more than memory has room for; {} available bytes hold "
                            "{}",
                            *options.params, format_bytes(available), most));
  }
  return *options.params;
}

// The number in a file of one line; nothing when it holds a word such as "max", or is not there.
std::optional<Bytes> bytes_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return Bytes{value};
}

}  // namespace

Bytes KernelCase::bytes_per_param() const {
  const Bytes in_place = size_of(weights) + moments_of(rule) * size_of(moments);
  return size_of(gradient) + 2 * in_place + (param ? size_of(*param) : Bytes{0});
}

unsigned KernelCase::passes() const {
  const unsigned widening = gradient == DType::fp32 ? 0 : 1;
  return widening + 2 + (param ? 1 : 0);
}

Bytes BenchOptimPlan::array_bytes() const { return params * kArrayBytesPerParam; }

BenchOptimPlan make_bench_optim_plan(const BenchOptimOptions& options, Bytes available) {
  BenchOptimPlan plan{.cases = all_cases(), .params = params_of(options, available)};
  // Whole blocks, so that tiles are whole blocks of the disk.
  plan.streamed_params =
      std::clamp(plan.params / kBlockElems * kBlockElems, kBlockElems, kMostStreamedParams);
  plan.threads = options.threads > 0 ? options.threads : allowed_cpus();
  plan.rounds = options.rounds;
  plan.disk_times = options.disk_times;
  return plan;
}

Bytes available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::optional<Bytes> available;
  for (std::uint64_t kib = 0; !available && meminfo >> key >> kib;) {
    if (key == "MemAvailable:") available = Bytes{kib << 10};
    meminfo.ignore(64, '\n');
  }
  if (!available) throw Error(ErrorCode::io, "no MemAvailable in /proc/meminfo");
  const std::optional<Bytes> limit = bytes_in("/sys/fs/cgroup/memory.max");
  const std::optional<Bytes> used = bytes_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return *available;
  return std::min(*available, *limit > *used ? *limit - *used : Bytes{0});
}

}  // namespace strata::tool
