// `strata bench optim`: what it plans, the loops that it compares with, the errors that it finds,
// what it reports and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bench_optim_accuracy.hpp"
#include "bench_optim_plan.hpp"
#include "bench_optim_streams.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"
#include "support/loop_file_system.hpp"
#include "support/run_tool.hpp"
#include "thread_team.hpp"
#include "tool.hpp"

namespace strata::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ThreadTeam, EveryElementIsVisitedOnce) {
  tool::ThreadTeam team(3);
  EXPECT_EQ(team.threads(), 3U);
  for (const std::uint64_t count : {0, 1, 99, 100, 101, 1000}) {
    std::vector<std::atomic<int>> visits(count);
    for (int round = 1; round <= 50; ++round) {
      team.run(count, 100, [&](std::uint64_t begin, std::uint64_t end) {
        EXPECT_LE(end - begin, 100U);
        for (std::uint64_t i = begin; i < end; ++i) ++visits[i];
      });
      for (const auto& visit : visits) ASSERT_EQ(visit, round);
    }
  }
}

TEST(OptimPlan, CasesAreAllRulesAndTheTypesOfAdamW) {
  const tool::BenchOptimPlan plan = tool::make_bench_optim_plan({}, 64_GiB);
  std::map<UpdateRule, int> cases;
  for (const tool::KernelCase& what : plan.cases) ++cases[what.rule];
  for (const UpdateRule rule : kUpdateRules) {
    EXPECT_EQ(cases[rule], rule == UpdateRule::adamw ? 6 : 1) << name_of(rule);
  }
  // Gradient 2, master and two moments read and written, parameter 2.
  EXPECT_EQ(plan.cases.front().bytes_per_param(), Bytes{28});
  EXPECT_EQ(plan.cases.front().passes(), 4U);
  const tool::KernelCase all_fp32{.gradient = DType::fp32, .param = {}};
  EXPECT_EQ(all_fp32.bytes_per_param(), Bytes{28});
  EXPECT_EQ(all_fp32.passes(), 2U);
  const tool::KernelCase own_masters{.weights = DType::bf16, .param = {}};
  EXPECT_EQ(own_masters.bytes_per_param(), Bytes{2 + 4 + 16});
  EXPECT_EQ(tool::KernelCase{.rule = UpdateRule::sgd}.bytes_per_param(), Bytes{2 + 8 + 2});
}

TEST(OptimPlan, ParamsAreWhatMemoryAllows) {
  const tool::BenchOptimPlan roomy = tool::make_bench_optim_plan({}, 64_GiB);
  EXPECT_LE(roomy.array_bytes(), 1536_MiB);
  EXPECT_GT(roomy.array_bytes(), 1500_MiB);
  const tool::BenchOptimPlan tight = tool::make_bench_optim_plan({}, 1_GiB);
  EXPECT_LE(tight.array_bytes(), 256_MiB);
  EXPECT_GT(tight.array_bytes(), 250_MiB);
  const tool::BenchOptimPlan chosen =
      tool::make_bench_optim_plan({.params = 7, .threads = 5, .rounds = 2}, 1_GiB);
  EXPECT_EQ(chosen.params, 7U);
  EXPECT_EQ(chosen.threads, 5U);
  EXPECT_EQ(chosen.rounds, 2U);
  EXPECT_EQ(chosen.streamed_params, kBlockElems);
  EXPECT_THROW(tool::make_bench_optim_plan({.params = 0}, 1_GiB), Error);
  EXPECT_THROW(tool::make_bench_optim_plan({.params = 1'000'000'000}, 1_GiB), Error);
  EXPECT_THROW(tool::make_bench_optim_plan({.params = UINT64_MAX}, 1_GiB), Error);
  EXPECT_GT(tool::available_memory(), 1_MiB);
}

// A loop that left out an array, or whose bytes were fewer, would be a bound too high.
TEST(Streams, TheLoopCarriesTheBytesOfTheKernelAndChangesNoState) {
  constexpr std::uint64_t kCount = 1003;
  for (const tool::KernelCase& what : tool::make_bench_optim_plan({}, 1_GiB).cases) {
    const auto array = [](std::uint8_t first) {
      std::vector<std::uint8_t> bytes(4 * kCount);
      for (std::uint64_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::uint8_t>(first + i % 100);
      }
      return bytes;
    };
    std::vector<std::uint8_t> gradient = array(1);
    std::vector<std::uint8_t> weights = array(2);
    std::vector<std::uint8_t> m1 = array(3);
    std::vector<std::uint8_t> m2 = array(4);
    std::vector<std::uint8_t> param = array(5);
    const UpdateOp op{.rule = what.rule,
                      .gradient = gradient.data(),
                      .gradient_dtype = what.gradient,
                      .weights = weights.data(),
                      .weights_dtype = what.weights,
                      .moments = {m1.data(), m2.data()},
                      .moments_dtype = what.moments,
                      .param = what.param ? param.data() : nullptr,
                      .param_dtype = what.param_type(),
                      .count_elems = kCount,
                      .runs = {}};
    SCOPED_TRACE(name_of(what.rule));
    tool::stream_as(op, 3, kCount, tool::Nothing{});
    EXPECT_EQ(gradient, array(1));
    EXPECT_EQ(weights, array(2));
    EXPECT_EQ(m1, array(3));
    EXPECT_EQ(m2, array(4));
    // With something else than nothing it shows what the loop reads and writes.
    tool::stream_as(op, 3, kCount, tool::Nothing{1});
    const auto changed = [](const std::vector<std::uint8_t>& now,
                            const std::vector<std::uint8_t>& before, std::uint64_t width) {
      std::uint64_t elements = 0;
      for (std::uint64_t i = 0; i < kCount; ++i) {
        elements +=
            std::equal(&now[i * width], &now[i * width] + width, &before[i * width]) ? 0 : 1;
      }
      return elements;
    };
    const std::size_t moments = moments_of(what.rule);
    EXPECT_EQ(gradient, array(1));
    EXPECT_EQ(changed(m1, array(3), size_of(what.moments).value), moments > 0 ? kCount - 3 : 0);
    EXPECT_EQ(changed(m2, array(4), size_of(what.moments).value), moments > 1 ? kCount - 3 : 0);
    if (what.param) {
      EXPECT_EQ(changed(weights, array(2), 4), kCount - 3);
      EXPECT_EQ(changed(param, array(5), 2), kCount - 3);
    } else {  // the gradient's lowest bits are added
      EXPECT_GT(changed(weights, array(2), size_of(what.weights).value), kCount / 4);
    }
  }
}

TEST(Streams, NarrowingRoundsAsTheLibraryDoes) {
  constexpr std::uint64_t kCount = 1003;
  std::vector<float> values(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) values[i] = 1.0F + 1e-4F * static_cast<float>(i * i);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    std::vector<std::uint16_t> narrowed(kCount);
    std::vector<std::uint16_t> right(kCount);
    tool::narrow(narrowed.data(), dtype, values.data(), 0, kCount);
    convert(right.data(), dtype, values.data(), DType::fp32, kCount);
    EXPECT_EQ(narrowed, right) << name_of(dtype);
  }
}

// A moment is two or three roundings of operands of a sum, which may be twice as large as they are;
// a weight takes the quotient's roundings besides.
TEST(Accuracy, StatesAreWithinTheirRoundings) {
  for (const tool::KernelCase& what : tool::make_bench_optim_plan({}, 1_GiB).cases) {
    SCOPED_TRACE(name_of(what.rule));
    const std::vector<tool::StateError> errors = tool::largest_errors(what);
    ASSERT_EQ(errors.size(), 1 + moments_of(what.rule));
    for (const tool::StateError& error : errors) {
      SCOPED_TRACE(error.state + ", " + error.operand);
      EXPECT_GT(error.fraction, 0.2) << "no error at all: what was compared?";
      EXPECT_GE(error.fraction, error.fraction_of_typical);
      EXPECT_LE(error.fraction_of_typical, error.state == "weight" ? 3.5 : 2.0);
      if (what.rule != UpdateRule::adamw || error.state == "weight") continue;
      EXPECT_LE(error.fraction, 1.0);
    }
  }
}

ToolOutcome bench_optim(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "optim"});
  return run_tool(std::move(arguments));
}

class BenchOptim : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  ScratchDirectory folder_;
};

TEST_F(BenchOptim, ReportsWhatItMeasured) {
  const ToolOutcome outcome = bench_optim(
      {"--params", "300001", "--rounds", "2", "--threads", "2", "--json", path("r.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  std::ifstream file(path("r.json"));
  const nlohmann::json json = nlohmann::json::parse(file);
  EXPECT_GT(json["bandwidth_bytes_per_s"].get<double>(), 0);
  EXPECT_TRUE(json["instruction_set"].is_string());
  EXPECT_EQ(json["threads"], 2);
  EXPECT_EQ(json["params"], 300001);

  ASSERT_EQ(json["kernels"].size(), kUpdateRules.size() + 5);
  std::set<std::string> names;
  for (const nlohmann::json& kernel : json["kernels"]) {
    SCOPED_TRACE(kernel.dump());
    names.insert(kernel["name"]);
    for (const char* type : {"grad", "param"}) {
      EXPECT_THAT(kernel[type].get<std::string>(), ::testing::AnyOf("bf16", "fp16", "fp32"));
    }
    EXPECT_EQ(kernel["moments"].is_null(), kernel["name"] == "sgd");
    for (const char* rate : {"params_per_s", "bytes_per_s", "fraction_of_bound",
                             "four_pass_params_per_s", "max_error_bound_fraction"}) {
      ASSERT_TRUE(kernel[rate].is_number()) << rate;
      EXPECT_GT(kernel[rate].get<double>(), 0) << rate;
    }
    EXPECT_NEAR(kernel["bytes_per_s"].get<double>() / kernel["params_per_s"].get<double>(),
                kernel["bytes_per_param"].get<double>(), 1e-6);
    EXPECT_LE(kernel["fraction_of_bound_80"][0], kernel["fraction_of_bound"]);
    EXPECT_GE(kernel["fraction_of_bound_80"][1], kernel["fraction_of_bound"]);
  }
  EXPECT_EQ(names.size(), kUpdateRules.size());

  const nlohmann::json& streaming = json["streaming"];
  EXPECT_EQ(streaming["read_bytes_per_param"], 12.0);
  EXPECT_EQ(streaming["written_bytes_per_param"], 12.0);
  EXPECT_GT(streaming["fraction_of_bound"].get<double>(), 0);
  // A disk does not serve faster than it declares; its latency is not counted in the bound.
  EXPECT_LE(streaming["fraction_of_bound"].get<double>(), 1);
  EXPECT_EQ(streaming["params"], 262144);

  for (std::size_t begin = 0, end = 0; (end = outcome.out.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    EXPECT_LE(end - begin, 80U) << outcome.out.substr(begin, end - begin);
  }
}

TEST_F(BenchOptim, AFewParametersAreMeasuredToo) {
  const ToolOutcome outcome = bench_optim({"--params", "1", "--rounds", "1", "--threads", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(BenchOptim, WrongUseIsOneLineAndLeavesNothing) {
  const std::vector<std::vector<std::string>> wrong{{"--params", "0"},
                                                    {"--params", "-1"},
                                                    {"--params", "many"},
                                                    {"--params", "1000000000000000"},
                                                    {"--params", "99999999999999999999999"},
                                                    {"--threads", "0"},
                                                    {"--threads", "-2"},
                                                    {"--rounds", "0"},
                                                    {"--unknown"},
                                                    {"left over"},
                                                    {"--json", path("no/such.json")},
                                                    {"--json", path("")}};
  for (std::vector<std::string> arguments : wrong) {
    SCOPED_TRACE(arguments.front() + " " + arguments.back());
    const ToolOutcome outcome = bench_optim(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("strata: "));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
  EXPECT_THAT(bench_optim({"--params", "1000000000000000"}).err, HasSubstr("memory"));
  const ToolOutcome failed =
      bench_optim({"--params", "1000000000000000", "--json", path("new.json")});
  EXPECT_EQ(failed.code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("new.json")));
}

TEST_F(BenchOptim, ASignalEndsItAndLeavesNothing) {
  std::thread user([this] {
    while (!std::filesystem::exists(path("r.json"))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the handlers are set by then
    ::kill(::getpid(), SIGINT);
  });
  const ToolOutcome outcome =
      bench_optim({"--params", "100000", "--rounds", "1000000", "--json", path("r.json")});
  user.join();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.err, "strata: interrupted; nothing was left behind\n");
  EXPECT_FALSE(std::filesystem::exists(path("r.json")));
}

TEST_F(BenchOptim, AClosedOutputEndsIt) {
  std::FILE* full = std::fopen("/dev/full", "w");
  if (full == nullptr) GTEST_SKIP() << "no /dev/full";
  const std::vector<const char*> arguments{"strata", "bench", "optim", "--params", "1000"};
  EXPECT_EQ(tool::run(static_cast<int>(arguments.size()), arguments.data(), full, stderr), 2);
  std::fclose(full);
}

}  // namespace
}  // namespace strata::test
