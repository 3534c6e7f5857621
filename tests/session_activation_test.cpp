// Activations that rest somewhere between forward and backward: what comes back is what was
// stashed, in whatever order, wherever it rested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.hpp"
#include "strata/session.hpp"
#include "support/error_of.hpp"
#include "support/simulated_disk.hpp"
#include "support/toy_runs.hpp"

namespace strata::test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kCount = 7;
constexpr Bytes kSize{300'001};  // a slab of 256 KiB and an odd rest

Config config_for(TierFractions activations) {
  Config config = toy_config({1, 0, 0}, {1, 0, 0}, {1, 0, 0});
  config.placement.activation = activations;
  config.budgets.device = 32_MiB;
  config.budgets.host = 64_MiB;
  config.budgets.nvme = 64_MiB;
  config.engine.tile = 256_KiB;
  config.nvme.directories = {"/d"};
  return config;
}

// A program that writes numbers into activations and compares what comes back.
class ActivationProgram {
 public:
  ActivationProgram(TestMachine& machine, const Config& config,
                    std::unique_ptr<BlockIo> disk = nullptr)
      : session_(open(machine, config, std::move(disk))),
        stream_(session_.device().create_stream("compute")),
        host_(session_.scratch(Tier::host, 2 * kSize)) {
    for (std::uint32_t u = 0; u < session_.model().units().size(); ++u) {
      session_.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
        std::ranges::fill(values, 0.0F);
      });
    }
  }
  ~ActivationProgram() {
    try {
      session_.device().synchronize(session_.device().record(stream_));
    } catch (const Error&) {
    }
  }

  Session& session() { return session_; }
  StreamId stream() const { return stream_; }
  Step begin() { return session_.begin_step({.pattern = "stash"}); }

  void fill(const ActivationLease& lease, std::uint64_t value) {
    copy_done();
    std::byte* from = host_.memory().data();
    std::memcpy(from, pattern(value).data(), kSize.value);
    session_.device().copy(stream_, lease.memory().data(), from, kSize, CopyKind::host_to_device);
  }
  void stash(std::uint32_t index, std::uint64_t value) {
    const ActivationLease lease = session_.stash(index, stream_);
    ASSERT_EQ(lease.memory().size(), kSize.value);
    fill(lease, value);
  }
  void expect(const ActivationLease& lease, std::uint64_t value) {
    std::byte* to = host_.memory().data() + kSize.value;
    session_.device().copy(stream_, to, lease.memory().data(), kSize, CopyKind::device_to_host);
    copy_done();
    ASSERT_EQ(std::memcmp(to, pattern(value).data(), kSize.value), 0);
  }
  void expect(std::uint32_t index, std::uint64_t value) {
    SCOPED_TRACE(index);
    expect(session_.unstash(index, stream_), value);
  }

 private:
  static Session open(TestMachine& machine, const Config& config, std::unique_ptr<BlockIo> disk) {
    Backends backends = machine.backends(Rank{0}, config);
    backends.block_io = disk ? std::move(disk) : std::make_unique<SimulatedDisk>();
    SessionOptions options;
    options.host_scratch = 2 * kSize;
    options.activations = {.count = kCount, .size = kSize};
    return Session::open(toy_model({}), config, std::move(backends), std::move(options));
  }
  static std::vector<std::uint64_t> pattern(std::uint64_t value) {
    std::vector<std::uint64_t> words(kSize.value / sizeof(value) + 1);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = rng::at(value, i);
    return words;
  }
  void copy_done() { session_.device().synchronize(session_.device().record(stream_)); }

  Session session_;
  StreamId stream_;
  ScratchLease host_;
};

const std::vector<TierFractions> kHomes{{1, 0, 0},       {0, 1, 0},     {0, 0, 1},
                                        {0.3, 0.3, 0.4}, {0.5, 0.5, 0}, {0.15, 0, 0.85}};

using Activations = TestOnMachine<1>;

TEST_F(Activations, ComeBackAsTheyWereInReverse) {
  for (const TierFractions& homes : kHomes) {
    SCOPED_TRACE(std::to_string(homes.host) + " " + std::to_string(homes.nvme));
    TestMachine machine(1, 1);
    ActivationProgram program(machine, config_for(homes));
    for (std::uint64_t step = 0; step < 3; ++step) {
      Step running = program.begin();
      for (std::uint32_t i = 0; i < kCount; ++i) program.stash(i, 100 * step + i);
      for (std::uint32_t i = kCount; i-- > 0;) program.expect(i, 100 * step + i);
      running.end();
    }
    machine.inspect(program.session());
  }
}

TEST_F(Activations, ReserveWhatThePlanSays) {
  for (const TierFractions& homes : kHomes) {
    TestMachine machine(1, 1);
    ActivationProgram program(machine, config_for(homes));
    Step running = program.begin();
    for (std::uint32_t i = 0; i < kCount; ++i) program.stash(i, i);
    for (std::uint32_t i = kCount; i-- > 0;) program.expect(i, i);
    running.end();
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const TierUsage usage = program.session().usage(tier);
      EXPECT_EQ(usage.reserved, program.session().memory_plan().total(tier));
      EXPECT_LE(usage.peak_in_use, usage.reserved);
    }
  }
}

// Whatever the program does, in whatever order; guesses of what comes next are wrong most times.
TEST_F(Activations, ComeBackInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    TestMachine machine(1, seed);
    ActivationProgram program(
        machine, config_for(kHomes[seed % kHomes.size()]),
        std::make_unique<SimulatedDisk>(SimulatedDisk::Options{.seed = seed}));
    std::uint64_t draw = 0;
    const auto random = [&](std::uint64_t below) { return rng::at(seed, draw++) % below; };
    for (int step = 0; step < 3; ++step) {
      std::vector<std::optional<std::uint64_t>> stashed(kCount);
      Step running = program.begin();
      for (int call = 0; call < 25; ++call) {
        const auto index = static_cast<std::uint32_t>(random(kCount));
        if (!stashed[index] || random(4) == 0) {  // also over what was there
          stashed[index] = random(1'000'000);
          program.stash(index, *stashed[index]);
        } else if (random(4) == 0) {
          program.session().unstash(index, program.stream()).discard();
          stashed[index].reset();
        } else if (random(3) == 0) {
          ActivationLease lease = program.session().unstash(index, program.stream());
          program.expect(lease, *stashed[index]);
          lease.keep();
        } else {
          program.expect(index, *stashed[index]);
          stashed[index].reset();
        }
      }
      running.end();
    }
    machine.inspect(program.session());
  }
}

// As micro-batches do that go through the layers side by side.
TEST_F(Activations, ComeBackInTheOrderOfTheStepBeforeAndMoreThanOnce) {
  for (const TierFractions& homes : kHomes) {
    TestMachine machine(1, 3);
    ActivationProgram program(machine, config_for(homes));
    for (std::uint64_t step = 0; step < 4; ++step) {
      Step running = program.begin();
      for (std::uint32_t i = 0; i < kCount; ++i) {
        program.stash(i, 10 * step + i);
        if (i % 3 != 2) continue;
        for (std::uint32_t k = i - 2; k <= i; ++k) {
          ActivationLease lease = program.session().unstash(k, program.stream());
          program.expect(lease, 10 * step + k);
          lease.keep();
        }
      }
      for (std::uint32_t i = kCount; i-- > 0;) program.expect(i, 10 * step + i);
      running.end();
    }
    machine.inspect(program.session());
  }
}

TEST_F(Activations, TwoAreHeldAtOnce) {
  TestMachine machine(1, 1);
  ActivationProgram program(machine, config_for({0, 0.5, 0.5}));
  Step running = program.begin();
  {
    const ActivationLease in = program.session().stash(0, program.stream());
    const ActivationLease out = program.session().stash(1, program.stream());
    program.fill(in, 5);
    program.fill(out, 6);
    const Error error = error_of([&] { program.session().stash(2, program.stream()).discard(); });
    EXPECT_EQ(error.code(), ErrorCode::budget_exceeded);
    EXPECT_THAT(error.what(), HasSubstr("2 activation leases are held"));
  }
  {
    const ActivationLease held = program.session().unstash(1, program.stream());
    EXPECT_THAT(error_of([&] { program.session().stash(1, program.stream()).discard(); }).what(),
                HasSubstr("held by a lease already"));
    program.expect(held, 6);
  }
  program.expect(0, 5);
  ActivationLease late = program.session().stash(2, program.stream());
  program.fill(late, 7);
  running.end();
  EXPECT_THAT(error_of([&] { [[maybe_unused]] Step next = program.begin(); }).what(),
              HasSubstr("activation leases of an earlier step"));
}

TEST_F(Activations, WrongUseIsToldAndChangesNothing) {
  TestMachine machine(1, 1);
  ActivationProgram program(machine, config_for({0, 0, 1}));
  EXPECT_EQ(error_of([&] { program.session().stash(0, program.stream()).discard(); }).code(),
            ErrorCode::invalid_argument);
  {
    Step running = program.begin();
    program.stash(3, 9);
    program.stash(4, 10);
    EXPECT_THAT(
        error_of([&] { program.session().stash(kCount, program.stream()).discard(); }).what(),
        HasSubstr("declares 7"));
    EXPECT_THAT(error_of([&] { program.session().unstash(2, program.stream()).discard(); }).what(),
                HasSubstr("not stashed in this step"));
    program.expect(3, 9);
    EXPECT_THAT(error_of([&] { program.session().unstash(3, program.stream()).discard(); }).what(),
                HasSubstr("not stashed in this step"));
    running.end();
  }
  // What the step before left is gone.
  Step running = program.begin();
  EXPECT_EQ(error_of([&] { program.session().unstash(4, program.stream()).discard(); }).code(),
            ErrorCode::invalid_argument);
  program.stash(4, 11);
  program.expect(4, 11);
  running.end();
}

// A failed write or read comes out of unstash(), and names the activation.
TEST_F(Activations, AnErrorOfTheDiskIsTold) {
  for (const Fault fault : {Fault::io_error, Fault::bit_flip_at_rest}) {
    TestMachine machine(1, 1);
    auto disk = std::make_unique<SimulatedDisk>();
    SimulatedDisk& faulty = *disk;
    Config config = config_for({0, 0, 1});
    config.nvme.retry_s = 0;
    ActivationProgram program(machine, config, std::move(disk));
    Step running = program.begin();
    faulty.fail(fault);
    program.stash(5, 1);
    const Error error = error_of([&] { program.expect(5, 1); });
    EXPECT_EQ(error.code(), fault == Fault::io_error ? ErrorCode::io : ErrorCode::corrupt);
    EXPECT_THAT(error.what(), HasSubstr("activation 5"));
  }
}

}  // namespace
}  // namespace strata::test
