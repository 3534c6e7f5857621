// Mutations at run time: the stand-in leaves out one wait between streams, each in turn, of those
// that a training makes. Every one of them must be missed by something: the race detector, or the
// weights. A wait that nobody misses is one too many.
//
// Each training runs in a process of its own: work that nobody waits for may use what is gone.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>
#include <stdexcept>

#include "cuda/cuda_device.hpp"
#include "support/nccl_ranks.hpp"
#include "support/simulated_disk.hpp"
#include "support/standin/standin.hpp"
#include "support/toy_program.hpp"

namespace strata::test {
namespace {

struct Setting {
  const char* name;
  std::uint32_t ranks;
  std::uint32_t micro_batches;
  TierFractions param, grad, optimizer;
};

constexpr Setting kSettings[] = {
    {"device", 1, 1, kDevice, kDevice, kDevice},
    {"host", 1, 2, kHost, kHost, kHost},
    {"nvme", 1, 1, kNvme, kNvme, kNvme},
    {"mixed", 2, 1, kMixed, kMixed, kMixed},
    {"accumulating", 2, 2, kMixed, kMixed, kMixed},
};

struct Outcome {
  std::string hash;  // or the error's text
  std::uint64_t waits = 0;
  std::vector<std::string> violations;
};

// Trains with the n-th wait left out; none is with a negative n.
Outcome train(const Setting& setting, std::int64_t n) {
  standin::configure({.devices = static_cast<int>(setting.ranks), .memory = 16_MiB});
  if (n >= 0) standin::ignore_wait(static_cast<std::uint64_t>(n));
  Config config = toy_config(setting.param, setting.grad, setting.optimizer);
  config.budgets.device = 8_MiB;
  config.engine.max_micro_batches = setting.micro_batches;
  const ToyOptions options{.steps = 2, .micro_batches = setting.micro_batches, .scale_elems = 2000};
  InProcessWorld meeting(setting.ranks);
  Outcome outcome;
  std::vector<std::string> hashes(setting.ranks);
  try {
    run_ranks(setting.ranks, [&](Rank rank, Communicator&) {
      Backends backends;
      backends.communicator = join_by_nccl(meeting, rank, setting.ranks);
      backends.device = std::make_unique<CudaDevice>(CudaDevice::Options{
          .arena = config.budgets.device, .index = static_cast<int>(rank.value)});
      backends.block_io = std::make_unique<SimulatedDisk>(
          SimulatedDisk::Options{.delivery = SimulatedDisk::Delivery::background});
      hashes[rank.value] = run_toy(options, config, std::move(backends)).states_hash;
    });
    outcome.hash = fmt::format("{}", fmt::join(hashes, " "));
  } catch (const Error& error) {
    outcome.hash = error.what();
  }
  outcome.waits = standin::waits();
  outcome.violations = standin::finish();
  return outcome;
}

// The same in a child process. A crash is an outcome like others.
Outcome train_apart(const Setting& setting, std::int64_t n) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    const Outcome outcome = train(setting, n);
    std::string text =
        fmt::format("{} {} {}", outcome.waits, outcome.violations.size(),
                    outcome.violations.empty() ? outcome.hash : outcome.violations.front());
    const bool told =
        ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(4096, ' ');
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  Outcome outcome;
  if (got <= 0) {
    outcome.hash = fmt::format("ended by signal {}", WTERMSIG(status));
    return outcome;
  }
  std::istringstream fields(text.substr(0, static_cast<std::size_t>(got)));
  std::size_t violations = 0;
  fields >> outcome.waits >> violations >> std::ws;
  std::getline(fields, outcome.hash);
  outcome.violations.assign(violations, outcome.hash);
  return outcome;
}

// The host may happen to know already what a wait would ensure: the wait was needed at another
// time.
constexpr int kTries = 20;

bool is_missed(const Setting& setting, const Outcome& whole, std::uint64_t n) {
  for (int i = 0; i < kTries; ++i) {
    const Outcome mutated = train_apart(setting, static_cast<std::int64_t>(n));
    if (mutated.hash != whole.hash || !mutated.violations.empty()) return true;
  }
  return false;
}

class IgnoredWait : public ::testing::TestWithParam<Setting> {};

TEST_P(IgnoredWait, IsMissed) {
  const Outcome whole = train_apart(GetParam(), -1);
  ASSERT_TRUE(whole.violations.empty()) << whole.violations.front();
  ASSERT_GT(whole.waits, 40U);
  for (std::uint64_t n = 0; n < whole.waits; ++n) {
    EXPECT_TRUE(is_missed(GetParam(), whole, n))
        << "nobody missed wait " << n << " of " << whole.waits;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, IgnoredWait, ::testing::ValuesIn(kSettings),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace strata::test
