// Sessions on a virtual clock: time is what the rates say, decisions are those of a real session,
// and payload is never touched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "session/factory.hpp"
#include "strata/error.hpp"
#include "strata/machine.hpp"
#include "strata/session.hpp"
#include "support/loop_file_system.hpp"
#include "virtual/virtual_device.hpp"
#include "virtual/virtual_disk.hpp"
#include "virtual/virtual_machine.hpp"

namespace strata::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;

class VirtualDeviceTest : public testing::Test {
 protected:
  VirtualMachine machine_{2, {}};
  VirtualDevice device_{machine_,
                        {.arena = 1_MiB, .host_to_device = {1e9, std::chrono::microseconds(10)}}};
  const StreamId a_ = device_.create_stream("a");
  const StreamId b_ = device_.create_stream("b");
};

TEST_F(VirtualDeviceTest, WorkOfOneStreamFollowsAndOfTwoRunsBeside) {
  device_.launch_for(a_, milliseconds(3));
  device_.launch_for(a_, milliseconds(4));
  device_.launch_for(b_, milliseconds(5));
  device_.synchronize(device_.record(b_));
  EXPECT_EQ(machine_.now_ns(), 5 * kMs);
  device_.synchronize(device_.record(a_));
  EXPECT_EQ(machine_.now_ns(), 7 * kMs);
  EXPECT_DOUBLE_EQ(device_.busy_seconds(a_), 7e-3);
}

TEST_F(VirtualDeviceTest, AnEventOrdersStreamsAndWaitingIsNotBusy) {
  device_.launch_for(a_, milliseconds(3));
  device_.wait(b_, device_.record(a_));
  device_.launch_for(b_, milliseconds(2));
  const Event end = device_.record(b_);
  EXPECT_FALSE(device_.done(end));
  device_.synchronize(end);
  EXPECT_EQ(machine_.now_ns(), 5 * kMs);
  EXPECT_DOUBLE_EQ(device_.busy_seconds(b_), 2e-3);
}

TEST_F(VirtualDeviceTest, ALinkCarriesOneCopyAtATime) {
  std::byte* const to = device_.arena().data();
  device_.copy(a_, to, nullptr, Bytes{1'000'000}, CopyKind::host_to_device);
  device_.copy(b_, to, nullptr, Bytes{1'000'000}, CopyKind::host_to_device);
  device_.synchronize(device_.record(a_));
  EXPECT_EQ(machine_.now_ns(), 1 * kMs + 10'000);
  device_.synchronize(device_.record(b_));
  EXPECT_EQ(machine_.now_ns(), 2 * kMs + 10'000);
}

TEST_F(VirtualDeviceTest, NotifyComesWhenTheEventFiresAndSlotsAreReused) {
  for (int i = 0; i < 1000; ++i) {
    device_.launch_for(a_, milliseconds(1));
    const Event event = device_.record(a_);
    EXPECT_LT(event.slot, 2U);
    std::int64_t told_ns = -1;
    device_.notify(event, [&] { told_ns = machine_.now_ns(); });
    EXPECT_EQ(told_ns, -1);
    device_.synchronize(event);
    EXPECT_EQ(told_ns, (i + 1) * kMs);
    device_.notify(event, [&] { told_ns = 0; });  // it is over
    EXPECT_EQ(told_ns, 0);
  }
}

TEST_F(VirtualDeviceTest, WaitingForNothingDies) {
  EXPECT_DEATH(machine_.run_until([] { return false; }), "waits for nothing");
}

TEST(VirtualDisk, ServesByPriorityAndTakesTheDeclaredTime) {
  VirtualMachine machine(1, {});
  VirtualDisk disk(machine, {{.read_bytes_per_second = 1e9,
                              .write_bytes_per_second = 5e8,
                              .half_duplex = true,
                              .request_latency_seconds = 0}});
  const FileId file = disk.open({"x", 1_MiB});
  const auto request = [&](IoOp op, std::uint64_t tag, std::uint64_t priority) {
    return IoRequest{
        .op = op, .file = file, .size = Bytes{1'000'000}, .priority = priority, .tag = tag};
  };
  disk.submit(std::vector<IoRequest>{request(IoOp::read, 0, 5), request(IoOp::write, 1, 9),
                                     request(IoOp::read, 2, 1)});
  std::vector<std::pair<std::uint64_t, std::int64_t>> done;
  machine.run_until([&] {
    IoResult result;
    while (disk.poll({&result, 1}) > 0) done.emplace_back(result.tag, machine.now_ns());
    return done.size() == 3;
  });
  // All three were there when the disk took its first.
  const std::vector<std::pair<std::uint64_t, std::int64_t>> expected{
      {2, 1 * kMs}, {0, 2 * kMs}, {1, 4 * kMs}};
  EXPECT_EQ(done, expected);
  EXPECT_DOUBLE_EQ(disk.occupied_seconds(), 4e-3);
}

// Forward over the units and backward in reverse, each with its time of compute.
class Program {
 public:
  Program(Session& session, SimulatedMachine* machine, double forward, double backward)
      : session_(session),
        machine_(machine),
        stream_(session.device().create_stream("compute")),
        forward_(forward),
        backward_(backward) {}

  StepResult step(std::uint32_t skipped = ~0U) {
    const auto units = static_cast<std::uint32_t>(session_.model().units().size());
    Step step = session_.begin_step();
    for (std::uint32_t u = 0; u < units; ++u) {
      if (u == skipped) continue;
      const GatherLease weights = session_.gather(UnitId{u}, stream_);
      compute(forward_);
    }
    for (std::uint32_t u = units; u-- > 0;) {
      const GatherLease weights = session_.gather(UnitId{u}, stream_);
      GradientLease gradients = session_.gradients(UnitId{u}, stream_);
      [[maybe_unused]] const GradientView view = gradients[TensorId{0}];
      compute(backward_);
      session_.reduce(std::move(gradients), stream_);
    }
    return step.end();
  }

 private:
  void compute(double seconds) {
    if (machine_ != nullptr) machine_->compute(stream_, seconds);
  }

  Session& session_;
  SimulatedMachine* machine_;
  const StreamId stream_;
  const double forward_;
  const double backward_;
};

Model model_of(std::uint32_t units, std::uint64_t params) {
  Model model;
  for (std::uint32_t u = 0; u < units; ++u) {
    model.add_unit("block." + std::to_string(u), {{"w", {params}}});
  }
  return model;
}

Config config_of(TierFractions states) {
  Config config;
  config.device.kind = Config::DeviceKind::cpu;
  config.budgets.device = 256_MiB;
  config.budgets.host = 256_MiB;
  config.budgets.nvme = 1_GiB;
  config.placement.param = config.placement.optimizer = states;
  config.placement.grad = states.device == 1 ? states : TierFractions{0, 1, 0};
  config.engine.tile = 256_KiB;
  config.nvme.directories = {"/nowhere"};
  return config;
}

double seconds_of(const SimulatedMachine& machine) {
  return static_cast<double>(machine.clock().now_ns()) * 1e-9;
}

TEST(Simulation, AResidentStepTakesItsCompute) {
  const Config config = config_of({1, 0, 0});
  SimulatedMachine machine(MachineRates{});
  Session session = Session::open(model_of(4, 100'000), config, machine.backends(config));
  Program program(session, &machine, 0.010, 0.020);
  for (int i = 0; i < 5; ++i) program.step();
  EXPECT_NEAR(seconds_of(machine), 5 * 4 * 0.030, 1e-6);
}

TEST(Simulation, AStepWithoutComputeTakesTheBytesOfTheDisk) {
  constexpr double kParams = 4 * 131'072;
  const Config config = config_of({0, 0, 1});
  SimulatedMachine machine(MachineRates{.disks = {{.read_bytes_per_s = 2e8,
                                                   .write_bytes_per_s = 1e8,
                                                   .half_duplex = true,
                                                   .latency_s = 0}}});
  Session session = Session::open(model_of(4, 131'072), config, machine.backends(config));
  Program program(session, &machine, 0, 0);
  program.step();
  session.synchronize();
  // Two gathers and 12 bytes of masters and moments read, those and the parameter written.
  const double expected = kParams * (16 / 2e8 + 14 / 1e8);
  EXPECT_NEAR(machine.disk_busy_seconds(), expected, 1e-9 * expected);
  EXPECT_GE(seconds_of(machine), expected);
  // The pipeline fills and drains: a tile of each kind or so.
  EXPECT_LT(seconds_of(machine), 1.1 * expected);
}

TEST(Simulation, CollectivesTakeTheBytesOfTheOthers) {
  const Config config = config_of({1, 0, 0});
  SimulatedMachine machine(MachineRates{.collective_bytes_per_s = 1e8, .exchange_s = 1e-3},
                           {.ranks = 4, .ranks_per_node = 2});
  Session session = Session::open(model_of(1, 1'000'192), config, machine.backends(config));
  const double opened = seconds_of(machine);
  Program program(session, &machine, 0, 0);
  const LinkBytes before = session.bytes_moved();
  program.step();
  session.synchronize();
  const LinkBytes moved = session.bytes_moved() - before;
  EXPECT_EQ(moved.gathered, Bytes{2 * 3 * 1'000'192 * 2 / 4});
  const double bytes = static_cast<double>((moved.gathered + moved.reduced).value);
  // The calls of a step that follows no schedule are agreed on, each for itself, and the verdict:
  // six times, some beside the collectives.
  EXPECT_GT(seconds_of(machine) - opened, bytes / 1e8);
  EXPECT_LT(seconds_of(machine) - opened, bytes / 1e8 + 6e-3);
}

// Whatever can be compared with a session that computes is equal.
TEST(Simulation, DecidesAsARealSessionDoes) {
  const ScratchDirectory directory;
  for (const TierFractions states : {TierFractions{0, 0, 1}, TierFractions{0, 1, 0},
                                     TierFractions{0.3, 0.4, 0.3}, TierFractions{1, 0, 0}}) {
    Config config = config_of(states);
    config.nvme.directories = {directory.path()};
    const Model model = model_of(5, 200'000);
    SimulatedMachine machine(MachineRates{
        .checksum_bytes_per_s = 1e10, .update_elems_per_s = 1e9, .sum_elems_per_s = 1e9});
    Session simulated = Session::open(model, config, machine.backends(config));
    Session real = Session::open(model, config,
                                 Backends{.communicator = make_self_communicator(),
                                          .device = make_cpu_device(config.budgets.device)});
    for (std::uint32_t u = 0; u < 5; ++u) {
      real.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
        std::ranges::fill(values, 0.01F);
      });
    }
    Program as_simulated(simulated, &machine, 1e-3, 2e-3);
    Program as_real(real, nullptr, 0, 0);
    const LinkBytes before = real.bytes_moved();
    const auto step = [&](std::uint32_t skipped) {
      const StepResult expected = as_real.step(skipped);
      const StepResult result = as_simulated.step(skipped);
      EXPECT_EQ(result.step, expected.step);
      EXPECT_EQ(result.pattern_repeated, expected.pattern_repeated);
    };
    for (int i = 0; i < 4; ++i) step(~0U);
    real.synchronize();
    simulated.synchronize();
    const LinkBytes expected = real.bytes_moved() - before;
    const LinkBytes moved = simulated.bytes_moved();
    EXPECT_EQ(moved.nvme_read, expected.nvme_read);
    EXPECT_EQ(moved.nvme_written, expected.nvme_written);
    EXPECT_EQ(moved.host_to_device, expected.host_to_device);
    EXPECT_EQ(moved.device_to_host, expected.device_to_host);
    step(2);  // what was ahead of it when it left is dropped: how much depends on the time
    step(~0U);
    EXPECT_EQ(simulated.schedule_facts().followed, real.schedule_facts().followed);
    EXPECT_EQ(simulated.schedule_facts().deviations, real.schedule_facts().deviations);
    EXPECT_EQ(simulated.schedule_facts().gather_slots, real.schedule_facts().gather_slots);
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      EXPECT_EQ(simulated.usage(tier).reserved, real.usage(tier).reserved);
    }
  }
}

TEST(Simulation, TheSameProgramTakesTheSameTime) {
  std::int64_t first_ns = 0;
  for (int i = 0; i < 2; ++i) {
    const Config config = config_of({0, 0.5, 0.5});
    SimulatedMachine machine(MachineRates{.update_elems_per_s = 1e9});
    Session session = Session::open(model_of(6, 100'000), config, machine.backends(config));
    Program program(session, &machine, 1e-3, 2e-3);
    for (int step = 0; step < 5; ++step) program.step();
    session.synchronize();
    if (i == 0) first_ns = machine.clock().now_ns();
    EXPECT_EQ(machine.clock().now_ns(), first_ns);
  }
}

// 100 billion parameters on 64 ranks: 25 GB of states for each, of which no byte is there.
TEST(Simulation, AModelMayBeLargerThanThisMachine) {
  Config config = config_of({0, 0, 1});
  config.budgets.device = 40_GiB;
  config.budgets.host = 512_GiB;
  config.budgets.nvme = 4096_GiB;
  config.engine.tile = 16_MiB;
  SimulatedMachine machine(MachineRates{.device_to_host_bytes_per_s = 2e10,
                                        .checksum_bytes_per_s = 1e10,
                                        .update_elems_per_s = 1e9,
                                        .collective_bytes_per_s = 1e12},
                           {.ranks = 64, .ranks_per_node = 8});
  Session session = Session::open(model_of(100, 1'000'000'000), config, machine.backends(config));
  Program program(session, &machine, 0.05, 0.1);
  for (int i = 0; i < 3; ++i) program.step();
  session.synchronize();
  const double floor = 3 * 1e11 / 64 * (16 / 2e9 + 14 / 1.5e9);
  EXPECT_GT(seconds_of(machine), floor);
  EXPECT_LT(seconds_of(machine), 1.5 * floor);
}

TEST(Simulation, WhatNeedsValuesIsRefused) {
  const Config config = config_of({0, 0, 1});
  SimulatedMachine machine(MachineRates{});
  Session session = Session::open(model_of(1, 1000), config, machine.backends(config));
  const auto refused = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code() == ErrorCode::not_supported;
    }
    return false;
  };
  EXPECT_TRUE(refused([&] { session.weights_hash(); }));
  EXPECT_TRUE(refused([&] { session.read(UnitId{0}, "param", {}); }));
  EXPECT_TRUE(refused([&] { session.probe(); }));
}

// Probing writes garbage into states, which initialize() sets: bits are those without it.
TEST(Probe, FindsRatesAndLeavesNoTrace) {
  const ScratchDirectory directory;
  std::string without;
  for (const bool probes : {false, true}) {
    Config config = config_of({0.2, 0.3, 0.5});
    config.nvme.directories = {directory.path()};
    Session session = Session::open(model_of(3, 300'000), config,
                                    Backends{.communicator = make_self_communicator(),
                                             .device = make_cpu_device(config.budgets.device)});
    if (probes) {
      const MachineRates rates = session.probe();
      EXPECT_GT(rates.disks.at(0).read_bytes_per_s, 0);
      EXPECT_GT(rates.disks.at(0).write_bytes_per_s, 0);
      EXPECT_GT(rates.host_to_device_bytes_per_s, 0);
      EXPECT_GT(rates.device_to_host_bytes_per_s, 0);
      EXPECT_GT(rates.checksum_bytes_per_s, 0);
      EXPECT_GT(rates.update_elems_per_s, 0);
      EXPECT_GT(rates.sum_elems_per_s, 0);
    }
    for (std::uint32_t u = 0; u < 3; ++u) {
      session.initialize(UnitId{u}, [](const TensorSlice& slice, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(slice.offset_elems + i) * 1e-6F;
        }
      });
    }
    Program program(session, nullptr, 0, 0);
    for (int i = 0; i < 3; ++i) program.step();
    if (probes) {
      EXPECT_EQ(session.weights_hash(true), without);
      try {
        session.probe();
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        EXPECT_THAT(error.what(), HasSubstr("call it first"));
      }
    } else {
      without = session.weights_hash(true);
    }
  }
}

}  // namespace
}  // namespace strata::test
