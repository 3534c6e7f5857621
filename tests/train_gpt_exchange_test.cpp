// Weights that leave train_gpt and come back, as a user runs it: the same bytes from any number of
// ranks and any placement, the same weights after the way round, and one clear line otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/child_process.hpp"
#include "support/loop_file_system.hpp"
#include "support/safetensors_files.hpp"

namespace strata::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto kLimit = 120s;  // of one program, on a machine that does other things as well

class Exchange : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(path("text"));
    for (int i = 0; i < 2000; ++i) text << "line " << i * i << " of a text to learn from\n";
    write("fp32.json", R"({"device": {"kind": "cpu"},
        "budgets": {"device": "12MiB", "host": "64MiB"},
        "placement": {"param": "host", "grad": "host", "optimizer": "host"},
        "precision": {"param": "fp32"}})");
    write("bf16.json", R"({"device": {"kind": "cpu"},
        "budgets": {"device": "6MiB", "host": "64MiB", "nvme": "64MiB"},
        "placement": {"param": "nvme", "grad": "host", "optimizer": {"host": 0.5, "nvme": 0.5}},
        "nvme": {"directories": ["."]}, "engine": {"tile": "256KiB"}})");
  }

  std::string path(const std::string& name) const { return scratch_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    write_bytes(path(name), text);
  }

  ChildResult run(int ranks, const std::vector<std::string>& arguments) const {
    std::vector<std::string> words;
    if (ranks > 1) {
      words = {STRATA_MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks)};
    }
    words.insert(words.end(), {STRATA_TRAIN_GPT, "--data", "text"});
    words.insert(words.end(), arguments.begin(), arguments.end());
    const ChildOptions options = {
        .directory = scratch_.path(),
        .environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                        "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                        "ASAN_OPTIONS=detect_leaks=0"},
        .stdout_path = {},
        .user = 0};
    return run_child(words, options, kLimit);
  }

  // Runs to the end and returns the summary.
  nlohmann::json finish(int ranks, std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--weights-hash", "--summary-json", "summary.json"});
    const ChildResult result = run(ranks, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    if (result.exit_code != 0) return {};
    return nlohmann::json::parse(std::ifstream(path("summary.json")));
  }

  std::map<std::string, std::string> files(const std::string& directory) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path(directory))) {
      all[entry.path().filename().string()] = read_bytes(entry.path().string());
    }
    return all;
  }

  void expect_refused(const std::vector<std::string>& arguments, const std::string& message,
                      int exit_code = 2, int ranks = 1) const {
    SCOPED_TRACE(message);
    const ChildResult result = run(ranks, arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
    std::istringstream lines(result.err);
    int ours = 0;
    for (std::string line; std::getline(lines, line);) ours += line.starts_with("train_gpt: error");
    EXPECT_EQ(ours, 1) << result.err;
  }

  ScratchDirectory scratch_;
};

TEST_F(Exchange, ComesBackWithTheSameWeightsAndTheSameBytesFromAnyRanks) {
  const auto trained = finish(1, {"--steps", "4", "--config", "fp32.json", "--untied", "--export",
                                  "trained", "--eval-every", "4"});
  ASSERT_FALSE(trained.is_null());
  ASSERT_EQ(files("trained").size(), 2U);
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const std::string whole = "whole" + std::to_string(ranks);
    const auto again = finish(ranks, {"--init-from", "trained", "--steps", "0", "--eval-every", "1",
                                      "--config", "fp32.json", "--export", whole});
    EXPECT_EQ(again["weights_hash"], trained["weights_hash"]);
    EXPECT_EQ(again["preset"], "pretrained");
    EXPECT_EQ(again["steps"], 0);
    if (ranks == 1) {
      EXPECT_EQ(again["evals"][0]["loss"], trained["evals"][0]["loss"]);
    }
    EXPECT_TRUE(files(whole) == files("trained")) << "the bytes depend on the ranks";
    if (ranks == 3) continue;
    const std::string shards = "shards" + std::to_string(ranks);
    finish(ranks, {"--init-from", whole, "--steps", "0", "--config", "fp32.json", "--export",
                   shards, "--export-file-size", "700KB"});
    EXPECT_GT(files(shards).size(), 4U);
    EXPECT_TRUE(files(shards) == files("shards1")) << "the bytes depend on the ranks";
  }
  const auto from_shards =
      finish(2, {"--init-from", "shards2", "--steps", "0", "--config", "fp32.json"});
  EXPECT_EQ(from_shards["weights_hash"], trained["weights_hash"]);
}

TEST_F(Exchange, MastersAreExportedAndParametersAreTheirRounding) {
  const auto trained =
      finish(2, {"--steps", "3", "--config", "bf16.json", "--export", "half", "--tied"});
  EXPECT_EQ(files("half").size(), 2U);
  finish(2,
         {"--steps", "3", "--config", "bf16.json", "--export", "full", "--export-dtype", "fp32"});
  const auto again = finish(
      1, {"--init-from", "full", "--steps", "0", "--config", "bf16.json", "--export", "half2"});
  EXPECT_EQ(again["weights_hash"], trained["weights_hash"]) << "of masters and parameters";
  EXPECT_TRUE(files("half2") == files("half"));
  EXPECT_THAT(files("half")["config.json"], HasSubstr("\"torch_dtype\": \"bfloat16\""));
  // It goes on from where it was.
  const auto more = finish(1, {"--init-from", "half", "--steps", "1", "--config", "fp32.json"});
  EXPECT_LT(more["loss_first"], trained["loss_first"]);
  EXPECT_FALSE(std::filesystem::exists(path("default"))) << "the run's files are still there";
}

TEST_F(Exchange, WhatCannotBeReadIsRefusedInOneLine) {
  finish(1, {"--steps", "1", "--config", "fp32.json", "--export", "good"});
  const auto refused = [&](std::vector<std::string> more, const std::string& message) {
    more.insert(more.begin(), {"--init-from", "good", "--steps", "0", "--config", "fp32.json"});
    expect_refused(more, message);
  };
  refused({"--layers", "3"}, "--layers (3) contradicts good/config.json (4); leave it out");
  refused({"--untied"}, "--tied (0) contradicts good/config.json (1)");
  refused({"--sequence", "65"}, "--sequence (65) is beyond max_position_embeddings (64)");
  refused({"--preset", "tiny"}, "--preset");
  refused({"--export", "good"}, "the directory of the export holds a model already");
  refused({"--export", "missing/out"}, "missing does not exist; create it");
  refused({"--export", "text"}, "is not a directory");
  refused({"--export-dtype", "bf16"}, "--export");
  refused({"--export", "new", "--export-dtype", "int8"}, "--export-dtype");
  refused({"--export", "new", "--export-file-size", "many"}, "--export-file-size");
  EXPECT_FALSE(std::filesystem::exists(path("new")));
  expect_refused({"--init-from", "missing"}, "missing/config.json");
  expect_refused({"--init-from", "missing"}, "missing/config.json", 2, 2);

  const std::string weights = read_bytes(path("good/model.safetensors"));
  write("good/model.safetensors", weights.substr(0, weights.size() - 1));
  refused({}, "of the data, of which the file has");
  std::filesystem::remove(path("good/model.safetensors"));
  refused({}, "has neither model.safetensors nor model.safetensors.index.json");
  write("good/model.safetensors",
        tensor_file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  refused({}, "the files do not hold \"model.embed_tokens.weight\"");
}

TEST_F(Exchange, TensorsThatAreNotUsedAreToldOnce) {
  finish(1, {"--steps", "1", "--config", "fp32.json", "--export", "some", "--untied"});
  nlohmann::json config = nlohmann::json::parse(read_bytes(path("some/config.json")));
  config["tie_word_embeddings"] = true;
  write("some/config.json", config.dump());
  const ChildResult result =
      run(2, {"--init-from", "some", "--steps", "0", "--config", "fp32.json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err,
            "train_gpt: warning: --init-from: the model does not use \"lm_head.weight\" "
            "(some/model.safetensors)\n");
}

TEST_F(Exchange, AFullDiskIsOneErrorAndLeavesNothing) {
  std::string why_not;
  const auto system = LoopFileSystem::mount({.size = 4_MiB}, why_not);
  if (system == nullptr) GTEST_SKIP() << why_not;
  const std::string directory = system->path() + "/out";
  for (const int ranks : {1, 2}) {
    expect_refused({"--steps", "1", "--layers", "7", "--config", "fp32.json", "--export", directory,
                    "--export-file-size", "1MB"},
                   "there is no room for a file of", 4, ranks);
    EXPECT_FALSE(std::filesystem::exists(directory));
  }
}

}  // namespace
}  // namespace strata::test
