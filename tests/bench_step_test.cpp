// `strata bench step`: the limits that it computes, what it reports and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_step_plan.hpp"
#include "support/loop_file_system.hpp"
#include "support/run_tool.hpp"

namespace strata::test {
namespace {

using ::testing::StartsWith;

TEST(StepWork, LimitsAreThoseOfThePhasesBottlenecks) {
  const tool::StepWork work{.forward_compute = 1,
                            .backward_compute = 2,
                            .forward_io = 0.5,
                            .backward_io = 2.5,
                            .update_io = 4};
  EXPECT_DOUBLE_EQ(limit_of(tool::StepMode::resident, work), 3);
  EXPECT_DOUBLE_EQ(limit_of(tool::StepMode::look_ahead_0, work), 1 + 2.5 + 4);
  // The next forward reads parameters from the disk that the update uses.
  EXPECT_DOUBLE_EQ(limit_of(tool::StepMode::after_verdict, work), 2.5 + 4.5);
  EXPECT_DOUBLE_EQ(limit_of(tool::StepMode::in_backward, work), 7);
}

TEST(StepWork, AHalfDuplexDiskAddsReadsAndWrites) {
  const tool::StepBytes bytes = tool::step_bytes({.units = 2, .unit_params = 100});
  EXPECT_DOUBLE_EQ(bytes.read(), 16 * 200);
  EXPECT_DOUBLE_EQ(bytes.written_update, 14 * 200);
  const tool::StepWork work = tool::work_of(bytes, 200, 100, 30);
  EXPECT_DOUBLE_EQ(work.forward_io, 2);
  EXPECT_DOUBLE_EQ(work.update_io, 12 + 28);
  EXPECT_DOUBLE_EQ(work.forward_compute, 10);
  EXPECT_DOUBLE_EQ(work.backward_compute, 20);
}

class BenchStep : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  static ToolOutcome bench_step(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"bench", "step"});
    return run_tool(arguments);
  }

  const ScratchDirectory directory_;
};

TEST_F(BenchStep, ReportsWhatItMeasured) {
  const std::string file = path("step.json");
  const ToolOutcome outcome = bench_step({"--units", "4", "--unit-params", "20000", "--rounds", "2",
                                          "--seconds", "0.02", "--json", file});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream in(file);
  const nlohmann::json json = nlohmann::json::parse(in);
  ASSERT_EQ(json["paced_ratios"].size(), 3U);
  EXPECT_EQ(json["paced"], json["paced_ratios"][0]);
  EXPECT_FALSE(json.contains("real"));
  for (const nlohmann::json& paced : json["paced_ratios"]) {
    SCOPED_TRACE(paced.dump());
    for (const char* mode : {"resident", "lookahead0", "verdict", "in_backward"}) {
      const std::string name = mode;
      // The paced ports are never faster than they declare; the first step is not measured.
      EXPECT_GT(paced[name + "_s"].get<double>(), 0) << mode;
      EXPECT_GT(paced[name + "_limit_s"].get<double>(), 0) << mode;
      EXPECT_GT(paced[name + "_virtual_s"].get<double>(), 0) << mode;
      EXPECT_GE(paced[name + "_limit_s"].get<double>(), paced["resident_limit_s"].get<double>());
    }
    EXPECT_GE(paced["resident_s"].get<double>(), paced["resident_limit_s"].get<double>());
    EXPECT_DOUBLE_EQ(paced["in_backward_limit_s"].get<double>(), paced["bound_s"].get<double>());
  }
  for (const char* tier : {"device", "host", "nvme"}) {
    EXPECT_EQ(json["reserved_bytes"][tier], json["planned_bytes"][tier]) << tier;
    EXPECT_GT(json["planned_bytes"][tier], 0) << tier;
  }
  for (std::size_t begin = 0, end = 0; (end = outcome.out.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    EXPECT_LE(end - begin, 80U) << outcome.out.substr(begin, end - begin);
  }
}

TEST_F(BenchStep, RunsOnThisMachineToo) {
  const std::string file = path("step.json");
  const ToolOutcome outcome =
      bench_step({"--units", "3", "--unit-params", "20000", "--rounds", "2", "--seconds", "0.01",
                  "--dir", directory_.path(), "--json", file});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream in(file);
  const nlohmann::json real = nlohmann::json::parse(in)["real"];
  EXPECT_GT(real["verdict_s"].get<double>(), 0);
  EXPECT_GT(real["update_io_s"].get<double>(), 0);
}

TEST_F(BenchStep, WrongUseIsOneLineAndLeavesNothing) {
  const std::vector<std::vector<std::string>> wrong{
      {"--units", "1"},        {"--unit-params", "0"},          {"--rounds", "0"},
      {"--seconds", "0"},      {"--seconds", "soon"},           {"--unknown"},
      {"--dir", "/no/such/d"}, {"--json", path("no/such.json")}};
  for (const std::vector<std::string>& arguments : wrong) {
    SCOPED_TRACE(arguments.front() + " " + arguments.back());
    const ToolOutcome outcome = bench_step(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, StartsWith("strata: "));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  }
}

}  // namespace
}  // namespace strata::test
