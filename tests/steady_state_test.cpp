// After the first step a session asks for nothing more: no memory, no files.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "cpu/cpu_device.hpp"
#include "self/self_communicator.hpp"
#include "support/loop_file_system.hpp"
#include "support/toy_program.hpp"

namespace {

std::atomic<std::uint64_t> by_caller = 0;
std::atomic<std::uint64_t> elsewhere = 0;
thread_local bool is_caller = false;

void* counted(std::size_t size, std::size_t alignment) {
  ++(is_caller ? by_caller : elsewhere);
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size == 0 ? 1 : size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace strata::test {
namespace {

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

struct Counts {
  std::uint64_t elsewhere;  // allocations of engine, workers, device and I/O threads so far
  std::uint64_t by_caller;  // in the last step
  std::size_t files;
};

class SteadyState : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, SteadyState, testing::Values("auto", "posix"),
                         [](const auto& backend) { return std::string(backend.param); });

TEST_P(SteadyState, AStepAsksForNoMemoryAndNoFiles) {
  const ScratchDirectory scratch;
  Config config = toy_config(kNvme, kNvme, kNvme);
  config.nvme.directories = {scratch.path()};
  config.nvme.spare_slots = 2;
  if (GetParam() == std::string("posix")) config.nvme.backend = Config::IoBackend::posix;
  config.engine.max_micro_batches = 2;
  config.engine.workers = 2;
  constexpr std::size_t kSteps = 30;
  constexpr std::size_t kWarmUp = 5;
  std::vector<Counts> counts;
  counts.reserve(kSteps + 1);
  is_caller = true;
  std::uint64_t at_start_of_step = 0;
  const auto count = [&](std::uint32_t) {
    const std::uint64_t of_step = by_caller.load() - at_start_of_step;
    const std::size_t files = open_files();
    counts.push_back({elsewhere.load(), of_step, files});
    at_start_of_step = by_caller.load();
  };
  run_toy(
      {.steps = kSteps, .micro_batches = 2, .scale_elems = 200000, .between_steps = count}, config,
      Backends{.communicator = create_self_communicator(), .device = nullptr, .block_io = nullptr});
  // What the toy launches and collects, and the verdict's exchange.
  constexpr std::uint64_t kOfToy = 24 + 1 + 3;
  std::size_t quiet = 0;
  std::uint64_t beyond_toy = 0;
  for (std::size_t i = kWarmUp; i < kSteps; ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1));
    if (counts[i + 1].elsewhere == counts[i].elsewhere) ++quiet;
    EXPECT_EQ(counts[i + 1].files, counts[i].files);
    if (counts[i + 1].by_caller > kOfToy) beyond_toy += counts[i + 1].by_caller - kOfToy;
  }
  // Threads meet in new ways now and then, and a queue gets longer than it ever was.
  EXPECT_GE(quiet, (kSteps - kWarmUp) / 2);
  EXPECT_LT(counts[kSteps].elsewhere - counts[kWarmUp].elsewhere, kSteps - kWarmUp);
  // More of the caller's requests may be under way than ever were.
  EXPECT_LE(beyond_toy, 5U);
}

}  // namespace
}  // namespace strata::test
