// The `strata` program: what it prints, writes and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "model_file.hpp"
#include "partition.hpp"
#include "partition_drawing.hpp"
#include "strata/error.hpp"
#include "support/loop_file_system.hpp"
#include "support/random_model.hpp"
#include "support/run_tool.hpp"

namespace strata::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class StrataTool : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name)) << content;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  ScratchDirectory folder_;
};

constexpr const char* kToy = R"({"units": [
  {"name": "A", "tensors": [{"name": "w", "shape": [5, 3]}, {"name": "b", "shape": [5]}]},
  {"name": "B", "tensors": [{"name": "w", "shape": [3, 5]}, {"name": "b", "shape": [3]}]}]})";

TEST_F(StrataTool, TellsWhoHoldsWhat) {
  const std::string model = write("toy.json", kToy);
  const ToolOutcome outcome = run_tool({"inspect", "partition", "--model", model, "--ranks", "4",
                                        "--svg", path("toy.svg"), "--json", path("out.json")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith("38 parameters in 2 units, sliced over 4 ranks; with padding "
                                      "a rank stores 128 elements\n"));
  EXPECT_THAT(outcome.out, HasSubstr("     0  [0, 64)     w[0, 15), 49 padding\n"
                                     "     1  [64, 128)   64 padding\n"
                                     "     2  [128, 192)  b[0, 3), 61 padding\n"));
  const auto json = nlohmann::json::parse(read("out.json"));
  EXPECT_EQ(json["groups"][1]["segments"][0]["ranks"][2]["parts"][0]["end"], 3);
  const std::string svg = read("toy.svg");
  EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("toy: which rank holds what"));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
}

TEST_F(StrataTool, TellsWhatRunsAhead) {
  const std::string model = write("toy.json", kToy);
  const std::string ahead = write("ahead.json", R"({"budgets": {"device": "1MiB", "host": "1GiB"},
    "placement": {"param": {"host": 1}, "grad": {"host": 1}, "optimizer": {"host": 1}},
    "engine": {"look_ahead": 1}})");
  const ToolOutcome outcome =
      run_tool({"inspect", "schedule", "--model", model, "--config", ahead, "--ranks", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "3 gather slots (2 for the program, 1 ahead); at most 2 in use\n\n"
            "  call                           staged with it               entered with it\n"
            "     0  begin_step               A, B                         A\n"
            "     1  gather A                                              B\n"
            "     2  gather B                 B                            B\n"
            "     3  gather B                 A                            A\n"
            "     4  reduce B\n"
            "     5  gather A\n"
            "     6  reduce A\n"
            "     7  end\n");

  const std::string none = write("none.json", R"({"budgets": {"device": "1MiB", "host": "1GiB"},
    "placement": {"param": {"host": 1}, "grad": {"host": 1}, "optimizer": {"host": 1}},
    "engine": {"look_ahead": 0}})");
  EXPECT_EQ(
      run_tool({"inspect", "schedule", "--model", model, "--config", none, "--ranks", "2"}).out,
      "engine.look_ahead is 0: nothing runs ahead\n");
  const std::string small = write("small.json", R"({"budgets": {"device": "1KiB"}})");
  const ToolOutcome refused =
      run_tool({"inspect", "schedule", "--model", model, "--config", small, "--ranks", "2"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("is too small"));
}

TEST_F(StrataTool, ShowsOneUnit) {
  const std::string model = write("toy.json", kToy);
  const ToolOutcome outcome =
      run_tool({"inspect", "partition", "--model", model, "--ranks", "2", "--unit", "B"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("\nB, trainable"));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("\nA, trainable")));
}

TEST_F(StrataTool, PrintsTheMemoryPlanAndRefusesOneThatDoesNotFit) {
  const std::string model = write("toy.json", kToy);
  const std::string config = write("c.json", "{}");
  const ToolOutcome fits =
      run_tool({"inspect", "memory", "--model", model, "--config", config, "--ranks", "2"});
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_THAT(fits.out, HasSubstr("param at rest"));
  EXPECT_THAT(fits.out, HasSubstr("4 MiB  communicator windows"));
  const std::string small = write("s.json", R"({"budgets": {"device": "1KiB"}})");
  const ToolOutcome refused =
      run_tool({"inspect", "memory", "--model", model, "--config", small, "--ranks", "2"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.out, HasSubstr("param at rest")) << "the table explains the refusal";
  EXPECT_THAT(refused.err, StartsWith("strata: device budget 1 KiB"));
}

TEST_F(StrataTool, WrongUseIsOneLineAndCodeTwo) {
  const std::string model = write("toy.json", kToy);
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"inspekt"},
      {"inspect"},
      {"inspect", "partition"},
      {"inspect", "partition", "--model", model},
      {"inspect", "partition", "--model", model, "--ranks", "0"},
      {"inspect", "partition", "--model", model, "--ranks", "two"},
      {"inspect", "partition", "--model", model, "--ranks", "2", "--modle", "x"},
      {"inspect", "partition", "--model", path("missing.json"), "--ranks", "2"},
      {"inspect", "partition", "--model", path(""), "--ranks", "2"},
      {"inspect", "partition", "--model", model, "--ranks", "2", "--unit", "C"},
      {"inspect", "partition", "--model", model, "--ranks", "2", "--svg", path("no/such.svg")},
      {"inspect", "memory", "--model", model, "--ranks", "2", "--config", path("missing.json")}};
  for (const auto& arguments : wrong) {
    std::string line;
    for (const std::string& argument : arguments) line += argument + " ";
    SCOPED_TRACE(line);
    const ToolOutcome outcome = run_tool(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("strata: "));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.ends_with('\n'));
  }
}

TEST_F(StrataTool, HelpIsNoMistake) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"inspect", "partition", "--help"}}) {
    const ToolOutcome outcome = run_tool(arguments);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Usage: "));
  }
}

void expect_refused(const std::string& text, const std::string& message) {
  try {
    static_cast<void>(tool::parse_model(text, "m.json"));
    FAIL() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), message.c_str());
  }
}

TEST(ModelFile, ReadsEveryKey) {
  const Model model = tool::parse_model(
      R"({"units": [{"name": "e", "reduces_per_micro_batch": 2, "tensors": [
            {"name": "w", "shape": [2, 3], "trainable": false, "group": 4}]}]})",
      "m.json");
  const UnitSpec& unit = model.units().at(0);
  EXPECT_EQ(unit.name, "e");
  EXPECT_EQ(unit.options.reduces_per_micro_batch, 2U);
  EXPECT_EQ(unit.tensors.at(0).shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_FALSE(unit.tensors.at(0).trainable);
  EXPECT_EQ(unit.tensors.at(0).group, 4U);
}

TEST(ModelFile, IsStrict) {
  const auto tensor = [](const std::string& fields) {
    return R"({"units": [{"name": "a", "tensors": [)" + fields + "]}]}";
  };
  const std::string at = "m.json: units[0].tensors[0]";
  expect_refused("", "m.json:1:1: not JSON");
  expect_refused("{\n  \"units\": x\n}", "m.json:2:12: not JSON");
  expect_refused("[]", "m.json: the file must be an object");
  expect_refused("{}", "m.json: the file has no \"units\"");
  expect_refused(R"({"units": []})", "m.json: units must be an array that is not empty");
  expect_refused(R"({"units": [1]})", "m.json: units[0] must be an object");
  expect_refused(R"({"units": [], "x": 1})",
                 "m.json: the file has an unknown key \"x\"; the keys here are units");
  expect_refused(R"({"units": [], "units": []})",
                 "m.json: the key \"units\" stands twice in one object");
  expect_refused(tensor(R"({"name": "w"})"), at + " has no \"shape\"");
  expect_refused(tensor(R"({"name": "", "shape": [1]})"),
                 at + ".name must be a string that is not empty");
  expect_refused(tensor(R"({"name": "w", "shape": [0]})"),
                 at + ".shape[0] must be a whole number from 1 to 9223372036854775807");
  expect_refused(tensor(R"({"name": "w", "shape": [1.5]})"),
                 at + ".shape[0] must be a whole number from 1 to 9223372036854775807");
  expect_refused(tensor(R"({"name": "w", "shape": [-1]})"),
                 at + ".shape[0] must be a whole number from 1 to 9223372036854775807");
  expect_refused(tensor(R"({"name": "w", "shape": [1], "trainable": 1})"),
                 at + ".trainable must be true or false");
  expect_refused(tensor(R"({"name": "w", "shape": [1], "dtype": "bf16"})"),
                 at + " has an unknown key \"dtype\"; the keys here are name, shape, trainable, "
                      "group");
  expect_refused(tensor(R"({"name": "w", "shape": [1]}, {"name": "w", "shape": [1]})"),
                 "m.json: units[0] is impossible: tensor w twice (unit a)");
}

TEST(Partition, EveryElementIsHeldOnceAndAlikeUnitsAreGrouped) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Model model = random_model(seed);
    const tool::Partition partition = tool::make_partition(model, 3, "");
    std::uint32_t units = 0;
    std::uint64_t held = 0;
    for (const tool::UnitGroup& group : partition.groups) {
      units += group.count;
      for (const tool::SegmentView& segment : group.first.segments) {
        for (const tool::ShardView& shard : segment.shards) {
          std::uint64_t elems = shard.padding_elems;
          for (const tool::HeldPart& part : shard.parts) {
            elems += part.end_elems - part.begin_elems;
            held += group.count * (part.end_elems - part.begin_elems);
          }
          EXPECT_EQ(elems, segment.shard_elems);
        }
      }
    }
    EXPECT_EQ(units, model.units().size());
    EXPECT_EQ(held, model.count_elems());
  }
  Model blocks;
  for (int i = 0; i < 12; ++i) blocks.add_unit("block." + std::to_string(i), {{"w", {64, 64}}});
  blocks.add_unit("head", {{"w", {64, 64}, false}});
  const tool::Partition partition = tool::make_partition(blocks, 2, "");
  ASSERT_EQ(partition.groups.size(), 2U);
  EXPECT_EQ(partition.groups[0].title(), "block.0 to block.11 (12 units)");
}

// XML that parsers accept: names are escaped, and large models give small pictures.
TEST(Partition, DrawsAnyNameAndManyRanks) {
  Model model;
  model.add_unit("<a> & \"b\"", {{"w&", {5000, 100}}, {"tiny", {1}}});
  const std::string svg = tool::draw_partition(tool::make_partition(model, 4, ""), "<m>");
  EXPECT_THAT(svg, HasSubstr("&lt;a&gt; &amp; &quot;b&quot;"));
  EXPECT_THAT(svg, HasSubstr("&lt;m&gt;: which rank holds what"));
  EXPECT_THAT(svg, HasSubstr("too narrow for a label: tiny 1"));
  Model deep;
  for (int i = 0; i < 400; ++i) {
    deep.add_unit("u" + std::to_string(i), {{"w", {64, static_cast<std::uint64_t>(64 + i)}}});
  }
  const std::string large = tool::draw_partition(tool::make_partition(deep, 256, ""), "deep");
  EXPECT_THAT(large, HasSubstr("the first 12 of 400 rows"));
  EXPECT_LT(large.size(), std::size_t{2} << 20);
}

TEST(Partition, GroupsDigits) {
  EXPECT_EQ(tool::grouped_digits(0), "0");
  EXPECT_EQ(tool::grouped_digits(999), "999");
  EXPECT_EQ(tool::grouped_digits(1000), "1,000");
  EXPECT_EQ(tool::grouped_digits(12582912), "12,582,912");
}

}  // namespace
}  // namespace strata::test
