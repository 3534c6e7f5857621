// train_gpt as a user runs it: real processes, real files, real ranks. What must hold of every run:
// weights that do not depend on the placement, numbers that agree with the operating system's,
// budgets that are kept, and one clear line with the right exit code when something is wrong.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "support/child_process.hpp"
#include "support/loop_file_system.hpp"

namespace strata::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

constexpr auto kLimit = 120s;  // of one program, on a machine that does other things as well
constexpr unsigned kNobody = 65534;

class TrainGpt : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    // Not below TempDir(): that may be a tmpfs, which sessions refuse.
    directory_ = std::filesystem::absolute(std::string("train_gpt_system_") + test->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    std::ofstream text(path("text"));
    for (int i = 0; i < 4000; ++i) text << "line " << i * i << " of a text to learn from\n";
  }
  void TearDown() override {
    if (!HasFailure()) std::filesystem::remove_all(directory_);
  }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  static std::string config(const std::string& name) {
    return std::string(STRATA_EXAMPLES_DIR) + "/train_gpt/configs/" + name + ".json";
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  static std::vector<std::string> command(int ranks, const std::vector<std::string>& arguments) {
    std::vector<std::string> words;
    if (ranks > 1) {
      words = {STRATA_MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks)};
    }
    words.insert(words.end(), {STRATA_TRAIN_GPT});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  ChildOptions options() const {
    return {.directory = directory_.string(),
            .environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                            "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                            "ASAN_OPTIONS=detect_leaks=0"},
            .stdout_path = {},
            .user = 0};
  }
  ChildResult run(int ranks, const std::vector<std::string>& arguments) const {
    return run_child(command(ranks, arguments), options(), kLimit);
  }

  // Trains the tiny model for five steps and returns the summary.
  nlohmann::json train(int ranks, const std::string& config_path,
                       std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"--data",
                                          path("text"),
                                          "--preset",
                                          "tiny",
                                          "--steps",
                                          "5",
                                          "--seed",
                                          "7",
                                          "--weights-hash",
                                          "--config",
                                          config_path,
                                          "--summary-json",
                                          path("summary.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ChildResult result = run(ranks, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(result.timed_out);
    if (result.exit_code != 0) return {};
    nlohmann::json summary = nlohmann::json::parse(std::ifstream(path("summary.json")));
    const std::string last = "weights " + summary["weights_hash"].get<std::string>() + "\n";
    EXPECT_TRUE(result.out.ends_with(last)) << result.out;
    return summary;
  }

  std::filesystem::path directory_;
};

void expect_own_books_match(const nlohmann::json& summary) {
  constexpr double kAgreement = 0.02;
  constexpr double kRssAllowance = 256 << 20;
  for (const auto& rank : summary["ranks"]) {
    const double read = rank["bytes"]["nvme_read"];
    const double written = rank["bytes"]["nvme_written"];
    // A few pages of output files are the operating system's, not ours.
    constexpr double kPages = 64 << 10;
    EXPECT_NEAR(rank["os_read_bytes"], read, kAgreement * read + kPages);
    EXPECT_NEAR(rank["os_written_bytes"], written, kAgreement * written + kPages);
    double budgets = 0;
    for (const char* tier : {"device", "host", "nvme"}) {
      const auto& numbers = rank["tiers"][tier];
      EXPECT_EQ(numbers["reserved"], numbers["planned"]) << tier;
      EXPECT_LE(numbers["peak_in_use"], numbers["reserved"]) << tier;
      EXPECT_LE(numbers["reserved"], numbers["budget"]) << tier;
      if (std::string_view(tier) != "nvme") budgets += numbers["budget"].get<double>();
    }
#ifndef __SANITIZE_ADDRESS__  // whose shadow and quarantine are memory too
    EXPECT_LE(rank["peak_rss_bytes"], budgets + kRssAllowance);
#endif
    EXPECT_GT(rank["peak_rss_bytes"], 0);
  }
}

TEST_F(TrainGpt, PlacementNeverChangesTheWeightsAndTheBooksMatch) {
  // A program that was just built reads its own pages from the disk once.
  ASSERT_FALSE(train(1, config("nvme")).is_null());
  for (const int ranks : {1, 2}) {
    for (const char* accumulation : {"1", "4"}) {
      std::map<std::string, std::vector<std::string>> placements_by_hash;
      for (const char* placement : {"device", "host", "nvme", "mixed"}) {
        SCOPED_TRACE(testing::Message()
                     << ranks << " ranks, accumulation " << accumulation << ", " << placement);
        const auto summary = train(ranks, config(placement), {"--accumulation", accumulation});
        ASSERT_FALSE(summary.is_null());
        EXPECT_EQ(summary["ranks"].size(), ranks);
        EXPECT_LT(summary["loss_last"], summary["loss_first"]);
        expect_own_books_match(summary);
        placements_by_hash[summary["weights_hash"]].push_back(placement);
      }
      EXPECT_EQ(placements_by_hash.size(), 1) << testing::PrintToString(placements_by_hash);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path("gpt-tiny"))) << "the run's files are still there";
}

TEST_F(TrainGpt, NvmeMovesWhatTheFloorSaysAndNoMoreThanPagesBeyond) {
  const auto summary = train(1, config("nvme"));
  for (const char* link : {"nvme_read", "nvme_written", "host_to_device", "device_to_host"}) {
    const double moved = summary["bytes_per_parameter_step"][link];
    const double floor = summary["floor_per_parameter_step"][link];
    EXPECT_GT(floor, 0) << link;
    EXPECT_NEAR(moved / floor, 1, 0.05) << link;
  }
  // docs/architecture.md, parameters and optimizer on NVMe with one micro-batch.
  EXPECT_DOUBLE_EQ(summary["floor_per_parameter_step"]["nvme_read"], 12 + 4);
  EXPECT_DOUBLE_EQ(summary["floor_per_parameter_step"]["nvme_written"], 14);
}

TEST_F(TrainGpt, TellsWhatEachResourceDidAndWritesATimeline) {
  const nlohmann::json summary = train(2, config("nvme"), {"--timeline", path("timeline.json")});
  ASSERT_FALSE(summary.is_null());
  const nlohmann::json& resources = summary["resources"];
  const double step = resources["step_s"];
  for (const char* name : {"compute", "nvme", "host to device", "device to host", "collectives"}) {
    SCOPED_TRACE(name);
    const nlohmann::json& resource = resources["busy"][name];
    ASSERT_TRUE(resource.is_object());
    EXPECT_GT(resource["busy_s"], 0);
    EXPECT_LE(resource["busy_s"], step);
    EXPECT_EQ(resource.contains("at_probed_rates_s"), std::string_view(name) != "compute");
  }
  EXPECT_GT(resources["bound_s"], 0);
  EXPECT_LE(resources["bound_s"], step * 1.5);  // the probe is another moment of a shared machine
  const double moved = summary["bytes_per_parameter_step"]["nvme_read"].get<double>() +
                       summary["bytes_per_parameter_step"]["nvme_written"].get<double>();
  EXPECT_NEAR(resources["busy"]["nvme"]["bytes"], moved * summary["parameters"].get<double>() / 2,
              1);

  const nlohmann::json timeline = nlohmann::json::parse(std::ifstream(path("timeline.json")));
  std::set<std::string> names;
  for (const nlohmann::json& event : timeline["traceEvents"]) names.insert(event["name"]);
  for (const char* name : {"block.0", "gather block.1", "reduce block.0", "read param block.1",
                           "update head", "end: verdict"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }

  const nlohmann::json without = train(1, config("nvme"), {"--no-probe"});
  EXPECT_FALSE(without["resources"].contains("bound_s"));
}

// Side by side, each weight moves once per pass whatever the number of micro-batches.
TEST_F(TrainGpt, VerticalAccumulationMovesWeightsOncePerPass) {
  const nlohmann::json across = train(1, config("nvme"), {"--accumulation", "2"});
  const nlohmann::json down = train(1, config("nvme"), {"--accumulation", "2", "--vertical"});
  ASSERT_FALSE(across.is_null() || down.is_null());
  EXPECT_NEAR(across["bytes_per_parameter_step"]["host_to_device"], 8, 0.2);
  EXPECT_NEAR(down["bytes_per_parameter_step"]["host_to_device"], 4, 0.2);
  for (std::size_t i = 0; i < down["losses"].size(); ++i) {
    const double loss = across["losses"][i];
    EXPECT_NEAR(down["losses"][i], loss, 0.005 * loss) << i;
  }
}

TEST_F(TrainGpt, TheBackendNeverChangesTheWeightsAndIsTold) {
  const std::string layout = R"("budgets": {"device": "6MiB", "host": "32MiB", "nvme": "64MiB"},
      "placement": {"param": "nvme", "grad": "nvme", "optimizer": "nvme"},
      "engine": {"tile": "256KiB"},)";
  std::string hash;
  for (const std::string nvme :
       {R"("backend": "auto")", R"("backend": "posix")", R"("verify": "off")",
        R"("backend": "posix", "queue_depth": 1, "write_depth": 1)", R"("spare_slots": 4)"}) {
    SCOPED_TRACE(nvme);
    const auto summary = train(
        1, write("config.json",
                 fmt::format(R"({{{} "nvme": {{"directories": ["."], {}}}}})", layout, nvme)));
    if (hash.empty()) hash = summary["weights_hash"];
    EXPECT_EQ(summary["weights_hash"], hash);
    const auto& storage = summary["storage"];
    const bool posix = nvme.find("posix") != std::string::npos;
    EXPECT_TRUE(storage["backend"] == "posix" || (!posix && storage["backend"] == "io_uring"));
    EXPECT_EQ(storage["verified"], nvme.find("off") == std::string::npos);
    expect_own_books_match(summary);
  }
}

// Limits of the process, as `prlimit` sets them: the run works within them or says what to raise.
class Limits : public TrainGpt {
 protected:
  ChildResult run_limited(const std::string& limit, bool as_nobody = false) const {
    std::vector<std::string> words = {"prlimit", "--" + limit};
    const auto trainer = command(1, {"--data", path("text"), "--preset", "tiny", "--steps", "2",
                                     "--config", config("nvme")});
    words.insert(words.end(), trainer.begin(), trainer.end());
    ChildOptions limited = options();
    if (as_nobody) {
      std::filesystem::permissions(directory_, std::filesystem::perms::all);
      limited.user = kNobody;
    }
    return run_child(words, limited, kLimit);
  }
  void SetUp() override {
    TrainGpt::SetUp();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers replace mlock and open files of their own";
#endif
    if (std::system("command -v prlimit > /dev/null") != 0) GTEST_SKIP() << "no prlimit here";
  }
};

TEST_F(Limits, WithoutLockedMemoryItWarnsOnceAndWorks) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become a user who may lock nothing";
  const ChildResult result = run_limited("memlock=65536:65536", true);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("staging memory: "));
  EXPECT_THAT(result.err, HasSubstr("could not be pinned with mlock (raise `ulimit -l`)"));
  const std::string unregistered = "cannot be registered with io_uring";
  const std::size_t first = result.err.find(unregistered);
  if (first == std::string::npos) return;  // no io_uring here
  EXPECT_EQ(result.err.find(unregistered, first + 1), std::string::npos) << "told twice";
}

TEST_F(Limits, TheFileSizeLimitIsToldBeforeTheFirstStep) {
  const ChildResult result = run_limited("fsize=1000000:1000000");
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("beyond the file size limit; raise it (ulimit -f)"));
  EXPECT_FALSE(std::filesystem::exists(path("gpt-tiny")));
}

TEST_F(Limits, FewDescriptorsWorkOrAreTold) {
  constexpr int kNotStarted = 127;  // the loader of shared libraries needs some as well
  for (const int files : {6, 7, 8, 9, 14}) {
    SCOPED_TRACE(std::to_string(files) + " descriptors");
    const ChildResult result =
        run_limited("nofile=" + std::to_string(files) + ":" + std::to_string(files));
    EXPECT_FALSE(result.timed_out);
    EXPECT_FALSE(std::filesystem::exists(path("gpt-tiny"))) << "left behind";
    if (result.exit_code == 0 || result.exit_code == kNotStarted) continue;
    EXPECT_LT(files, 12) << result.err;
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, HasSubstr("ulimit -n"));
  }
}

// File systems that a test may mount: both sizes of sectors, and one that promises more than the
// device below it can hold.
class FileSystems : public TrainGpt {
 protected:
  std::string config_on(const std::string& directory, const std::string& more = "") const {
    return write("on_device.json",
                 R"({"budgets": {"device": "6MiB", "host": "32MiB", "nvme": "64MiB"},
                     "placement": {"param": "nvme", "grad": "nvme", "optimizer": "nvme"},
                     "engine": {"tile": "256KiB"},
                     "nvme": {"run": "gpt-tiny", "directories": [")" +
                     directory + R"("])" + more + "}}");
  }
};

TEST_F(FileSystems, SectorsNeverChangeTheWeights) {
  std::string why_not;
  const std::string hash = train(1, config_on("."))["weights_hash"];
  for (const Bytes sector : {512_B, 4_KiB}) {
    const auto system = LoopFileSystem::mount({.size = 48_MiB, .sector = sector}, why_not);
    if (system == nullptr) GTEST_SKIP() << why_not;
    const auto summary = train(1, config_on(system->path()));
    EXPECT_EQ(summary["weights_hash"], hash);
    EXPECT_EQ(summary["storage"]["direct"], true);
  }
}

TEST_F(FileSystems, ADeviceThatFillsUpStopsTheRunWithTheTensorAndTheStep) {
  std::string why_not;
  const auto small = LoopFileSystem::mount({.size = 32_MiB}, why_not);
  if (small == nullptr) GTEST_SKIP() << why_not;
  const auto thin = LoopFileSystem::mount({.size = 128_MiB, .parent = small->path()}, why_not);
  ASSERT_NE(thin, nullptr) << why_not;
  // Eats what the states do not need, so that the device is full in the middle of a step.
  const auto result =
      run(1, {"--data", path("text"), "--preset", "tiny", "--steps", "50", "--config",
              config_on(thin->path(), R"(, "spare_slots": 100, "retry_s": 0.2)")});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("trying again"));
  EXPECT_THAT(result.err, testing::AnyOf(HasSubstr("No space left"), HasSubstr("Input/output")));
  EXPECT_THAT(result.err, HasSubstr("states.bin, offset "));
  EXPECT_THAT(result.err, HasSubstr("unit "));
  EXPECT_THAT(result.err, testing::AnyOf(HasSubstr("is whole"), HasSubstr("no step")));
  EXPECT_FALSE(std::filesystem::exists(thin->path() + "/gpt-tiny"));
}

// A stop (Ctrl-Z, a debugger) longer than the timeout is not the disk's fault.
TEST_F(TrainGpt, AStoppedProcessGoesOn) {
  const std::string patient = write("config.json", R"({
      "budgets": {"device": "6MiB", "host": "32MiB", "nvme": "32MiB"},
      "placement": {"param": "nvme", "grad": "host", "optimizer": "nvme"},
      "nvme": {"directories": ["."], "timeout_s": 0.5, "queue_depth": 1}, "engine": {"tile": "256KiB"}})");
  ChildProcess child(command(1, {"--data", path("text"), "--preset", "tiny", "--steps", "60",
                                 "--config", patient}),
                     options());
  ASSERT_TRUE(child.wait_for_output("step ", kLimit));
  for (int i = 0; i < 3; ++i) {
    ::kill(child.pid(), SIGSTOP);
    std::this_thread::sleep_for(800ms);
    ::kill(child.pid(), SIGCONT);
    std::this_thread::sleep_for(100ms);
  }
  const ChildResult result = child.wait(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(TrainGpt, EveryPrecisionTrainsAlike) {
  const auto losses_of = [&](const std::string& precision) {
    const std::string file = write("precision.json", R"({
        "device": {"kind": "cpu"}, "budgets": {"device": "16MiB", "host": "64MiB"},
        "placement": {"param": "host", "grad": "host", "optimizer": "host"},
        "precision": )" + precision + "}");
    const auto summary = train(1, file);
    EXPECT_EQ(summary["skipped_steps"], 0) << precision;
    return summary["losses"].get<std::vector<double>>();
  };
  const std::vector<double> exact = losses_of(R"({"param": "fp32"})");
  for (const char* precision :
       {R"({"param": "bf16"})", R"({"param": "fp16"})", R"({"param": "fp16", "moments": "bf16"})",
        R"({"param": "bf16", "reduce": "fp32", "master": "param"})"}) {
    const std::vector<double> losses = losses_of(precision);
    ASSERT_EQ(losses.size(), exact.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], exact[i], 0.02) << precision << " step " << i;
    }
    EXPECT_LT(losses.back(), losses.front()) << precision;
  }
}

TEST_F(TrainGpt, TheSeedDecidesTheWeights) {
  const auto first = train(1, config("host"));
  const auto again = train(1, config("host"), {"--threads", "1"});
  const auto other = train(1, config("host"), {"--untied"});
  EXPECT_EQ(first["losses"], again["losses"]);
  EXPECT_EQ(first["weights_hash"], again["weights_hash"]);
  EXPECT_NE(first["weights_hash"], other["weights_hash"]);
}

struct BadInput {
  const char* name;
  std::vector<std::string> arguments;  // TEXT, DIR and CONFIG:<json> are replaced
  int exit_code;
  const char* message;
};

class BadInputs : public TrainGpt {
 protected:
  std::vector<std::string> resolve(std::vector<std::string> words) const {
    for (std::string& word : words) {
      if (word == "TEXT") word = path("text");
      if (word.starts_with("CONFIG:")) word = write("config.json", word.substr(7));
    }
    return words;
  }

  static std::string nvme_config(const std::string& directory) {
    return R"({"budgets": {"device": "6MiB", "host": "32MiB", "nvme": "32MiB"},
               "placement": {"param": "nvme", "grad": "host", "optimizer": "nvme"},
               "engine": {"tile": "1MiB"},
               "nvme": {"directories": [")" +
           directory + R"("], "run": "bad"}})";
  }

  // One line on stderr, the right code, and nothing trained.
  void expect_refused(const std::vector<std::string>& arguments, int exit_code,
                      const std::string& message, int ranks = 1, unsigned user = 0) const {
    ChildOptions as = options();
    as.user = user;
    const ChildResult result = run_child(command(ranks, arguments), as, kLimit);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_THAT(result.out, Not(HasSubstr("step ")));
    std::istringstream lines(result.err);
    int ours = 0;
    for (std::string line; std::getline(lines, line);) ours += line.starts_with("train_gpt: error");
    EXPECT_EQ(ours, 1) << result.err;
    if (ranks == 1) {
      EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    }
  }
};

TEST_F(BadInputs, AreRefusedInOneLineWithTheRightExitCode) {
  write("empty", "");
  write("short", "too short for a sequence");
  write("odd", "abc");
  const std::vector<BadInput> inputs = {
      {"no data", {}, 2, "--data FILE or --tokens FILE"},
      {"unknown flag", {"--data", "TEXT", "--stesp", "5"}, 2, "--stesp"},
      {"negative steps", {"--data", "TEXT", "--steps", "-1"}, 2, "--steps"},
      {"unknown preset", {"--data", "TEXT", "--preset", "huge"}, 2, "huge"},
      {"impossible model", {"--data", "TEXT", "--heads", "3"}, 2, "heads"},
      {"missing data", {"--data", "missing"}, 2, "missing"},
      {"a directory", {"--data", "."}, 2, "directory"},
      {"empty data", {"--data", "empty"}, 2, "empty"},
      {"short data", {"--data", "short"}, 2, "one sequence needs"},
      {"odd token file", {"--tokens", "odd"}, 2, "not a multiple of 2"},
      {"vocabulary", {"--tokens", "TEXT"}, 2, "not below the vocabulary size"},
      {"no config", {"--data", "TEXT", "--config", "missing.json"}, 2, "missing.json"},
      {"no json", {"--data", "TEXT", "--config", "text"}, 2, "text:1:"},
      {"config key", {"--data", "TEXT", "--config", R"(CONFIG:{"budgest": {}})"}, 2, "budgets"},
      {"config value",
       {"--data", "TEXT", "--config", R"(CONFIG:{"engine": {"workers": 257}})"},
       2,
       "engine.workers"},
      {"small budget",
       {"--data", "TEXT", "--config", R"(CONFIG:{"budgets": {"device": "1MiB"}})"},
       3,
       "the smallest that works is"},
      {"summary path", {"--data", "TEXT", "--summary-json", "missing/s.json"}, 2, "--summary-json"},
      {"timeline path", {"--data", "TEXT", "--timeline", "missing/t.json"}, 2, "--timeline"},
  };
  for (const BadInput& input : inputs) {
    SCOPED_TRACE(input.name);
    expect_refused(resolve(input.arguments), input.exit_code, input.message);
  }
}

TEST_F(BadInputs, NvmeDirectoriesThatCannotServeAreRefused) {
  const auto refused = [&](const std::string& directory, const std::string& message,
                           unsigned user = 0) {
    SCOPED_TRACE(directory);
    write("config.json", nvme_config(directory));
    expect_refused({"--data", path("text"), "--config", path("config.json")}, 4, message, 1, user);
  };
  refused("missing", "does not exist");
  refused("text", "is not a directory");
  refused("/dev/shm", "rests in RAM");
  if (::geteuid() == 0) {
    std::filesystem::create_directory(path("locked"));
    ASSERT_EQ(::chmod(path("locked").c_str(), 0555), 0);
    refused("locked", "not writable", kNobody);
  }
}

TEST_F(BadInputs, ADirectoryInUseIsRefusedAndFreeAgainAfterAKill) {
  write("config.json", nvme_config("."));
  const std::vector<std::string> forever = {"--data",  path("text"), "--steps",
                                            "1000000", "--config",   path("config.json")};
  {
    ChildProcess holder(command(1, forever), options());
    ASSERT_TRUE(holder.wait_for_output("loss", kLimit));
    expect_refused({"--data", path("text"), "--config", path("config.json")}, 4,
                   "holds the data file");
    ASSERT_EQ(::kill(holder.pid(), SIGKILL), 0);
    EXPECT_EQ(holder.wait(kLimit).exit_code, 128 + SIGKILL);
  }
  EXPECT_FALSE(train(1, path("config.json")).is_null());
}

TEST_F(BadInputs, OneRankSpeaksForTheJob) {
  expect_refused({"--data", "missing"}, 2, "error: rank 0: ", 2);
  write("config.json", R"({"budgets": {"device": "1MiB"}})");
  expect_refused({"--data", path("text"), "--config", path("config.json")}, 3, "device budget", 2);
}

TEST_F(TrainGpt, AnInterruptEndsTheRunAfterTheStep) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    ChildProcess child(command(1, {"--data", path("text"), "--steps", "1000000", "--config",
                                   config("nvme"), "--summary-json", path("s.json")}),
                       options());
    ASSERT_TRUE(child.wait_for_output("loss", kLimit));
    ASSERT_EQ(::kill(child.pid(), signal_number), 0);
    const ChildResult result = child.wait(kLimit);
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_THAT(result.out, HasSubstr("summary, interrupted"));
    EXPECT_EQ(result.err, "");
    const auto summary = nlohmann::json::parse(std::ifstream(path("s.json")));
    EXPECT_TRUE(summary["interrupted"]);
    EXPECT_FALSE(std::filesystem::exists(path("gpt-tiny")));
  }
}

TEST_F(TrainGpt, AnInterruptOfOneRankEndsAllAfterTheSameStep) {
  ChildProcess child(
      command(2, {"--data", path("text"), "--steps", "1000000", "--config", config("nvme")}),
      options());
  ASSERT_TRUE(child.wait_for_output("loss", kLimit));
  const auto ranks = children_of(child.pid(), "train_gpt");
  ASSERT_EQ(ranks.size(), 2);
  ASSERT_EQ(::kill(ranks[1], SIGTERM), 0);
  const ChildResult result = child.wait(kLimit);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.out, HasSubstr("summary, interrupted"));
  EXPECT_THAT(result.err, Not(HasSubstr("train_gpt: error")));
}

TEST_F(TrainGpt, ADeadRankEndsTheJobQuickly) {
  ChildProcess child(
      command(2, {"--data", path("text"), "--steps", "1000000", "--config", config("nvme")}),
      options());
  ASSERT_TRUE(child.wait_for_output("loss", kLimit));
  const auto ranks = children_of(child.pid(), "train_gpt");
  ASSERT_EQ(ranks.size(), 2);
  const auto killed_at = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(ranks[0], SIGKILL), 0);
  const ChildResult result = child.wait(kLimit);
  EXPECT_FALSE(result.timed_out);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, 30s) << "not only at the timeout";
  EXPECT_FALSE(train(2, config("nvme")).is_null()) << "something hinders the next run";
}

TEST_F(TrainGpt, AFullStdoutIsAnErrorAtTheEndAndNotBefore) {
  ChildOptions full = options();
  full.stdout_path = "/dev/full";
  const ChildResult result =
      run_child(command(1, {"--data", path("text"), "--steps", "3", "--config", config("host"),
                            "--summary-json", path("s.json")}),
                full, kLimit);
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, HasSubstr("cannot write to stdout"));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(path("s.json")))["steps"], 3);
}

}  // namespace
}  // namespace strata::test
