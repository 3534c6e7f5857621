// Whole sessions on a disk that fails: whatever happens to any request, the run ends with the right
// states or with an error that says what was lost, and never with wrong states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "session/factory.hpp"
#include "support/loop_file_system.hpp"
#include "support/simulated_disk.hpp"
#include "support/test_machine.hpp"
#include "support/toy_program.hpp"

namespace strata::test {
namespace {

using testing::HasSubstr;

struct Outcome {
  std::string states_hash;     // of a run that ended well
  std::optional<Error> error;  // of one that did not
  std::vector<std::string> injected;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
};

// Two micro-batches, so that gradients are read back and rewritten within a step.
ToyOptions small_program() { return {.steps = 2, .micro_batches = 2, .scale_elems = 2000}; }

Config nvme_config() {
  Config config = toy_config(kNvme, kNvme, kNvme);
  config.engine.max_micro_batches = 2;
  config.nvme.retry_s = 5;
  config.budgets.device = 8_MiB;
  return config;
}

using Arm = std::function<void(SimulatedDisk&, std::uint32_t completed_steps)>;

Outcome run(const Config& config, ToyOptions program, const Arm& arm,
            const SimulatedDisk::Options& disk_options = {}) {
  auto disk = std::make_unique<SimulatedDisk>(disk_options);
  SimulatedDisk& faults = *disk;
  program.between_steps = [&](std::uint32_t completed) { arm(faults, completed); };
  TestMachine machine(1);
  Backends backends = machine.backends(Rank{0}, config);
  backends.block_io = std::move(disk);
  Outcome outcome;
  try {
    outcome.states_hash = run_toy(program, config, std::move(backends), [&](Session&) {
                            outcome.injected = faults.injected();
                            outcome.reads = faults.counters().reads;
                            outcome.writes = faults.counters().writes;
                          }).states_hash;
  } catch (const Error& error) {
    outcome.error = error;
  }
  return outcome;
}

Outcome run_undisturbed(const Config& config) {
  return run(config, small_program(), [](SimulatedDisk&, std::uint32_t) {});
}

// What makes an error useful.
void expect_told(const Error& error) {
  EXPECT_THAT(error.what(), HasSubstr("nvme tier"));
  EXPECT_THAT(error.context().path, HasSubstr("/nvme/default/rank-0/states.bin"));
  EXPECT_TRUE(error.context().offset_bytes.has_value());
  EXPECT_FALSE(error.context().unit.empty());
  EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("is whole"), HasSubstr("no step")));
  EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("param"), HasSubstr("grad"),
                                           HasSubstr("master"), HasSubstr("moment")));
}

constexpr Fault kHealed[] = {Fault::io_error,
                             Fault::no_space,
                             Fault::short_transfer,
                             Fault::misdirected_read,
                             Fault::stale_read,
                             Fault::bit_flip_on_read,
                             Fault::slow};
constexpr Fault kLasting[] = {Fault::torn_write, Fault::lost_write, Fault::misdirected_write,
                              Fault::bit_flip_at_rest};

// Fails the k-th request of a training step and of what follows, for every k there is, and hands
// each outcome of a run in which it happened to `check`.
template <class Check>
std::uint64_t for_every_request(const Config& config, Fault fault, Check&& check) {
  for (std::uint64_t k = 0;; ++k) {
    SCOPED_TRACE(std::string(name_of(fault)) + " at request " + std::to_string(k));
    const Outcome outcome =
        run(config, small_program(), [&](SimulatedDisk& disk, std::uint32_t completed) {
          if (completed == 1) disk.fail(fault, k);
        });
    if (!outcome.error && outcome.injected.empty()) return k;
    check(outcome);
    if (testing::Test::HasFailure()) return k;
  }
}

struct Variant {
  const char* name;
  std::uint32_t spare_slots;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class EveryRequest : public testing::TestWithParam<Variant> {
 protected:
  EveryRequest() { config_.nvme.spare_slots = GetParam().spare_slots; }
  Config config_ = nvme_config();
};
INSTANTIATE_TEST_SUITE_P(Storage, EveryRequest,
                         testing::Values(Variant{"in_place", 0}, Variant{"beside", 2}),
                         [](const auto& variant) { return variant.param.name; });

TEST_P(EveryRequest, that_fails_for_a_moment_heals) {
  const Outcome right = run_undisturbed(config_);
  for (const Fault fault : kHealed) {
    const std::uint64_t count = for_every_request(config_, fault, [&](const Outcome& outcome) {
      ASSERT_FALSE(outcome.error) << outcome.error->what();
      ASSERT_EQ(outcome.states_hash, right.states_hash);
    });
    EXPECT_GT(count, 20U) << name_of(fault);
  }
}

TEST_P(EveryRequest, that_leaves_wrong_data_is_told_before_the_data_is_used) {
  const Outcome right = run_undisturbed(config_);
  for (const Fault fault : kLasting) {
    std::uint64_t told = 0;
    const std::uint64_t count = for_every_request(config_, fault, [&](const Outcome& outcome) {
      if (!outcome.error) {
        // A torn write that lost padding only.
        ASSERT_EQ(outcome.states_hash, right.states_hash);
        return;
      }
      ++told;
      ASSERT_EQ(outcome.error->code(), ErrorCode::corrupt) << outcome.error->what();
      expect_told(*outcome.error);
    });
    EXPECT_GT(count, 20U) << name_of(fault);
    EXPECT_GT(told, count / 3) << name_of(fault);
  }
}

TEST_P(EveryRequest, that_keeps_failing_stops_the_session_with_the_first_cause) {
  config_.nvme.retry_s = 0;
  for (const Fault fault : {Fault::io_error, Fault::no_space, Fault::short_transfer}) {
    const std::uint64_t count = for_every_request(config_, fault, [&](const Outcome& outcome) {
      ASSERT_TRUE(outcome.error);
      ASSERT_EQ(outcome.error->code(),
                fault == Fault::no_space ? ErrorCode::no_space : ErrorCode::io);
      expect_told(*outcome.error);
    });
    EXPECT_GT(count, 20U) << name_of(fault);
  }
}

// A disk that answers after the timeout: the session stops at once and waits with its memory.
TEST(Storage, ADiskWithoutAnAnswerStopsTheSession) {
  Config config = nvme_config();
  config.nvme.timeout_s = 0.02;
  std::uint64_t told = 0;
  for (std::uint64_t k = 0; k < 60; k += 7) {
    SCOPED_TRACE("request " + std::to_string(k));
    const Outcome outcome =
        run(config, small_program(),
            [&](SimulatedDisk& disk, std::uint32_t completed) {
              if (completed == 1) disk.fail(Fault::slow, k);
            },
            {.delivery = SimulatedDisk::Delivery::background, .slow_ticks = 5000});
    if (!outcome.error) continue;
    ++told;
    EXPECT_EQ(outcome.error->code(), ErrorCode::io);
    EXPECT_EQ(outcome.error->context().errnum, ETIMEDOUT) << outcome.error->what();
    expect_told(*outcome.error);
  }
  EXPECT_GT(told, 3U);
}

// Without checksums the same faults pass, which shows that they are what finds them.
TEST(Storage, WithoutVerificationWrongDataPasses) {
  Config config = nvme_config();
  config.nvme.verify = Config::Verify::off;
  const Outcome right = run_undisturbed(nvme_config());
  EXPECT_EQ(run_undisturbed(config).states_hash, right.states_hash);
  std::uint64_t wrong = 0;
  for_every_request(config, Fault::bit_flip_at_rest, [&](const Outcome& outcome) {
    ASSERT_FALSE(outcome.error);
    if (outcome.states_hash != right.states_hash) ++wrong;
  });
  EXPECT_GT(wrong, 5U);
}

StoredFile& only_file(SimulatedDisk& disk) {
  const std::vector<std::string> paths = disk.store()->paths();
  EXPECT_EQ(paths.size(), 1U);
  return *disk.store()->find(paths.at(0));
}

// One byte of the file, anywhere, between steps: found before it is used, unless nothing uses it.
TEST(Storage, AnyByteThatChangesBetweenStepsIsFound) {
  const Outcome right = run_undisturbed(nvme_config());
  std::uint64_t found = 0;
  constexpr std::uint64_t kRuns = 200;
  for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::uint64_t offset = 0;
    const Outcome outcome =
        run(nvme_config(), small_program(), [&](SimulatedDisk& disk, std::uint32_t completed) {
          if (completed != 1) return;
          const std::span<std::byte> bytes = only_file(disk).bytes();
          offset = rng::at(seed, 0) % bytes.size();
          bytes[offset] ^= std::byte{1} << static_cast<int>(rng::at(seed, 1) % 8);
        });
    if (!outcome.error) {
      EXPECT_EQ(outcome.states_hash, right.states_hash) << "offset " << offset;
      continue;
    }
    ++found;
    EXPECT_EQ(outcome.error->code(), ErrorCode::corrupt);
    const std::uint64_t begin = outcome.error->context().offset_bytes.value();
    EXPECT_LE(begin, offset);
    EXPECT_LT(offset, begin + outcome.error->context().size->value);
  }
  // Gradients are dead between steps: 4 of 18 bytes per element, and the frozen tensor has none.
  EXPECT_GT(found, kRuns / 2);
}

// The whole file as it was one step before: every version is the wrong one.
TEST(Storage, AnOlderVersionIsFound) {
  std::vector<std::byte> older;
  const Outcome outcome = run(nvme_config(), {.steps = 3, .micro_batches = 2, .scale_elems = 2000},
                              [&](SimulatedDisk& disk, std::uint32_t completed) {
                                const std::span<std::byte> bytes = only_file(disk).bytes();
                                if (completed == 1) older.assign(bytes.begin(), bytes.end());
                                if (completed == 2) std::ranges::copy(older, bytes.begin());
                              });
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), ErrorCode::corrupt);
  EXPECT_THAT(outcome.error->what(), HasSubstr("step 2 is lost in part"));
}

TEST(Storage, ATruncatedFileIsFound) {
  for (const double retry_s : {0.0, 0.01}) {
    Config config = nvme_config();
    config.nvme.retry_s = retry_s;
    const Outcome outcome =
        run(config, small_program(), [&](SimulatedDisk& disk, std::uint32_t completed) {
          if (completed == 1) only_file(disk).resize(8_KiB);
        });
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::io);
    EXPECT_THAT(outcome.error->what(), HasSubstr("was the file truncated?"));
    expect_told(*outcome.error);
  }
}

// Faults of every kind at once, by chance: right or told.
TEST(Storage, ManyFaultsAtOnceNeverGiveWrongStates) {
  const Outcome right = run_undisturbed(nvme_config());
  std::uint64_t healed = 0;
  std::uint64_t told = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Config config = nvme_config();
    config.nvme.spare_slots = static_cast<unsigned>(seed % 3);
    config.engine.workers = 1 + static_cast<unsigned>(seed % 2);
    const Outcome outcome = run(config, small_program(),
                                [&](SimulatedDisk& disk, std::uint32_t completed) {
                                  if (completed > 0) return;
                                  for (const Fault fault : kHealed)
                                    disk.set_probability(fault, 0.01);
                                  for (const Fault fault : kLasting)
                                    disk.set_probability(fault, 0.002);
                                },
                                {.seed = seed, .slow_ticks = 50});
    if (outcome.error) {
      ++told;
    } else {
      ++healed;
      EXPECT_EQ(outcome.states_hash, right.states_hash);
      EXPECT_FALSE(outcome.injected.empty());
    }
  }
  EXPECT_GT(healed, 5U);
  EXPECT_GT(told, 5U);
}

// Writes beside the old version cost room and nothing else.
TEST(Storage, SpareSlotsMoveTheSameBytesAndAreBudgeted) {
  const Outcome in_place = run_undisturbed(nvme_config());
  Config config = nvme_config();
  config.nvme.spare_slots = 3;
  const Outcome beside = run_undisturbed(config);
  EXPECT_EQ(beside.states_hash, in_place.states_hash);
  EXPECT_EQ(beside.reads, in_place.reads);
  EXPECT_EQ(beside.writes, in_place.writes);
}

TEST(Storage, AReadOfWhatWasNeverSetIsTheCallersMistake) {
  const Config config = nvme_config();
  TestMachine machine(1);
  Backends backends = machine.backends(Rank{0}, config);
  backends.block_io = std::make_unique<SimulatedDisk>();
  Session session = Session::open(toy_model({}), config, std::move(backends));
  try {
    session.read(UnitId{1}, "param", [](const TensorSlice&, std::span<const float>) {});
    FAIL() << "unset parameters were read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("param was read before it was set: call initialize()"));
    EXPECT_EQ(error.context().unit, "block.0");
  }
  // Nor does a step begin before every unit has states, wherever they rest.
  session.initialize(UnitId{0}, [](const TensorSlice&, std::span<float>) {});
  try {
    const Step step = session.begin_step({});
    FAIL() << "a step began without states";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.context().unit, "block.0");
  }
  session.close();
}

// What is told about the states is told once, and is true.
TEST(Storage, AFailureWhileStatesAreSetLeavesNoWholeStep) {
  Config config = nvme_config();
  config.nvme.retry_s = 0;
  ToyOptions program = small_program();
  program.between_steps = {};
  auto disk = std::make_unique<SimulatedDisk>();
  SimulatedDisk& faults = *disk;
  TestMachine machine(1);
  Backends backends = machine.backends(Rank{0}, config);
  backends.block_io = std::move(disk);
  std::optional<Error> told;
  run_toy(program, config, std::move(backends), [&](Session& session) {
    const auto fill = [](const TensorSlice&, std::span<float>) {};
    session.initialize(UnitId{0}, fill);
    faults.fail(Fault::no_space, 1);
    try {
      session.initialize(UnitId{1}, fill);
    } catch (const Error& error) {
      told = error;
    }
  });
  ASSERT_TRUE(told);
  EXPECT_THAT(told->what(), HasSubstr("no step is whole: the states were being set"));
}

TEST(Storage, AnErrorInsideANestedCallIsToldOnce) {
  const Outcome outcome = [] {
    Config config = nvme_config();
    return run(config, small_program(), [](SimulatedDisk& disk, std::uint32_t completed) {
      if (completed == 2) {
        for (int i = 0; i < 2; ++i) disk.fail(Fault::bit_flip_on_read);
      }
    });
  }();
  ASSERT_TRUE(outcome.error);
  const std::string text = outcome.error->what();
  const std::size_t first = text.find("step 2 is lost in part");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("step 2", first + 1), std::string::npos) << text;
}

// The program may go elsewhere, and something may stand in the way of tidying up.
TEST(Storage, CloseFindsItsFilesAndReturnsWhateverHappens) {
  const ScratchDirectory here;
  const ScratchDirectory there;
  const std::filesystem::path start = std::filesystem::current_path();
  std::filesystem::current_path(here.path());
  std::filesystem::create_directories(here.path() + "/nvme");
  std::filesystem::create_directories(there.path() + "/nvme/default/rank-0");
  std::ofstream(there.path() + "/nvme/default/rank-0/states.bin") << "of another run";
  Config config = nvme_config();
  config.nvme.directories = {"nvme"};
  TestMachine machine(1);
  const auto open = [&](LogSink log) {
    return Session::open(toy_model({}), config, machine.backends(Rank{0}, config),
                         {.log = std::move(log)});
  };
  {
    Session session = open({});
    std::filesystem::current_path(there.path());
    session.close();
  }
  EXPECT_FALSE(std::filesystem::exists(here.path() + "/nvme/default")) << "left behind";
  EXPECT_TRUE(std::filesystem::exists(there.path() + "/nvme/default/rank-0/states.bin"));

  std::filesystem::current_path(here.path());
  std::vector<std::string> lines;
  {
    Session session = open([&](LogLevel level, std::string_view line) {
      if (level == LogLevel::warning) lines.emplace_back(line);
    });
    lines.clear();
    const std::string path = here.path() + "/nvme/default/rank-0/states.bin";
    std::filesystem::remove(path);
    std::filesystem::create_directories(path + "/in the way");
    session.close();
  }
  std::filesystem::current_path(start);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("cannot delete the data file; delete it by hand"));
}

// In a child: the kernel answers io_uring_setup with EPERM, as containers and sysctl do.
void open_where_io_uring_is_forbidden() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = 4, .filter = filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) std::_Exit(2);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) std::_Exit(3);
  std::string told;
  const LogSink log = [&](LogLevel level, std::string_view line) {
    if (level == LogLevel::warning) told += std::string(line) + "\n";
  };
  Config config;
  if (make_block_io(config, log)->name() != "posix") std::_Exit(4);
  if (told.find("using POSIX threads") == std::string::npos) std::_Exit(5);
  config.nvme.backend = Config::IoBackend::io_uring;
  try {
    make_block_io(config, log);
  } catch (const Error& error) {
    std::_Exit(error.code() == ErrorCode::not_supported ? 0 : 6);
  }
  std::_Exit(7);
}

TEST(StorageDeathTest, WhereIoUringIsForbiddenPosixThreadsTakeOver) {
  EXPECT_EXIT(open_where_io_uring_is_forbidden(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace strata::test
