// Data and learning-rate schedule of examples/train_gpt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "strata/error.hpp"
#include "train_gpt/data.hpp"
#include "train_gpt/schedule.hpp"

namespace strata::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using train_gpt::BatchId;
using train_gpt::Dataset;
using train_gpt::Split;
using train_gpt::TokenFormat;

class DataFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "train_gpt_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  // Tokens 0, 1, 2, ... as little-endian numbers, so that a token tells its position.
  std::string write_counting(std::uint32_t count, std::uint32_t width_bytes) const {
    std::string content;
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::uint32_t byte = 0; byte < width_bytes; ++byte) {
        content.push_back(static_cast<char>((i >> (8 * byte)) & 0xFFU));
      }
    }
    return write("counting.bin", content);
  }

  std::string directory_;
};

// The message of the error that `action` throws.
std::string error_of(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

std::vector<std::uint32_t> inputs_of(Dataset& data, std::uint64_t rows, std::uint32_t sequence,
                                     const BatchId& id, std::uint64_t seed = 1,
                                     Split split = Split::train) {
  std::vector<std::uint32_t> inputs(rows * sequence);
  std::vector<std::uint32_t> targets(rows * sequence);
  data.read_batch(seed, split, id, inputs, targets);
  return inputs;
}

TEST_F(DataFile, ReadsBytesAndShiftsTargets) {
  Dataset data(write("text", "abcdef"), TokenFormat::bytes, 256, 5);
  EXPECT_EQ(data.count_tokens(), 6U);
  EXPECT_FALSE(data.has_eval_split());
  std::vector<std::uint32_t> inputs(5);
  std::vector<std::uint32_t> targets(5);
  for (const Split split : {Split::train, Split::eval}) {
    data.read_batch(1, split, {}, inputs, targets);
    EXPECT_THAT(inputs, ::testing::ElementsAre('a', 'b', 'c', 'd', 'e'));
    EXPECT_THAT(targets, ::testing::ElementsAre('b', 'c', 'd', 'e', 'f'));
  }
}

TEST_F(DataFile, ReadsBothTokenWidths) {
  Dataset narrow(write_counting(5000, 2), TokenFormat::u16, 65536, 8);
  EXPECT_EQ(narrow.count_tokens(), 5000U);
  const auto first = inputs_of(narrow, 40, 8, {});
  Dataset wide(write_counting(200000, 4), TokenFormat::u32, 200000, 8);
  const auto second = inputs_of(wide, 40, 8, {});
  for (const auto* rows : {&first, &second}) {
    for (std::size_t i = 0; i < rows->size(); ++i) {
      EXPECT_EQ((*rows)[i], (*rows)[i / 8 * 8] + i % 8);  // consecutive tokens of the file
    }
  }
  EXPECT_GT(*std::max_element(first.begin(), first.end()), 255U);
  EXPECT_GT(*std::max_element(second.begin(), second.end()), 65535U);
}

TEST_F(DataFile, EveryCoordinateOfABatchMatters) {
  Dataset data(write_counting(60000, 2), TokenFormat::u16, 65536, 4);
  const BatchId id{.step = 3, .micro_batch = 1, .rank = 2};
  const auto base = inputs_of(data, 3, 4, id);
  EXPECT_EQ(base, inputs_of(data, 3, 4, id));
  EXPECT_NE(base, inputs_of(data, 3, 4, {.step = 4, .micro_batch = 1, .rank = 2}));
  EXPECT_NE(base, inputs_of(data, 3, 4, {.step = 3, .micro_batch = 2, .rank = 2}));
  EXPECT_NE(base, inputs_of(data, 3, 4, {.step = 3, .micro_batch = 2, .rank = 1}));
  EXPECT_NE(base, inputs_of(data, 3, 4, {.step = 3, .micro_batch = 1, .rank = 3}));
  EXPECT_NE(base, inputs_of(data, 3, 4, id, 2));
  EXPECT_EQ((std::set<std::uint32_t>{base[0], base[4], base[8]}.size()), 3U);
  // A row does not depend on how many rows its batch has.
  const auto more = inputs_of(data, 5, 4, id);
  EXPECT_TRUE(std::equal(base.begin(), base.end(), more.begin()));
}

TEST_F(DataFile, SplitsAreDisjointAndFullyUsed) {
  // 200 tokens: training has [0, 190), evaluation [190, 200). A sequence of 4 covers 5 tokens.
  Dataset data(write_counting(200, 2), TokenFormat::u16, 200, 4);
  ASSERT_TRUE(data.has_eval_split());
  std::set<std::uint32_t> train;
  std::set<std::uint32_t> eval;
  for (std::uint64_t step = 0; step < 4000; ++step) {
    train.insert(inputs_of(data, 1, 4, {.step = step})[0]);
    eval.insert(inputs_of(data, 1, 4, {.step = step}, 1, Split::eval)[0]);
  }
  EXPECT_EQ(*train.begin(), 0U);
  EXPECT_EQ(*train.rbegin(), 185U);
  EXPECT_EQ(train.size(), 186U);
  EXPECT_EQ(*eval.begin(), 190U);
  EXPECT_EQ(*eval.rbegin(), 195U);
  EXPECT_EQ(eval.size(), 6U);
}

TEST_F(DataFile, ShortFilesAreNotSplit) {
  Dataset data(write_counting(99, 2), TokenFormat::u16, 200, 4);  // 5 % are 4 tokens
  EXPECT_FALSE(data.has_eval_split());
  Dataset longer(write_counting(100, 2), TokenFormat::u16, 200, 4);
  EXPECT_TRUE(longer.has_eval_split());
}

TEST_F(DataFile, RefusesFilesThatCannotServe) {
  const auto open = [&](const std::string& file, TokenFormat format = TokenFormat::bytes) {
    return [=] { Dataset data(file, format, 256, 8); };
  };
  EXPECT_THAT(error_of(ErrorCode::io, open(path("none"))),
              AllOf(HasSubstr("cannot open"), HasSubstr("No such file"), HasSubstr("none")));
  EXPECT_THAT(error_of(ErrorCode::io, open(directory_)),
              AllOf(HasSubstr("is a directory"), HasSubstr(directory_)));
  EXPECT_THAT(error_of(ErrorCode::config, open(write("empty", ""))), HasSubstr("is empty"));
  EXPECT_THAT(error_of(ErrorCode::config, open(write("short", "12345678"))),
              AllOf(HasSubstr("holds 8 tokens"), HasSubstr("needs 9")));
  EXPECT_THAT(
      error_of(ErrorCode::config, open(write("odd", std::string(41, 'x')), TokenFormat::u16)),
      AllOf(HasSubstr("41 bytes"), HasSubstr("multiple of 2")));
  EXPECT_THAT(
      error_of(ErrorCode::config, open(write("odd", std::string(42, 'x')), TokenFormat::u32)),
      AllOf(HasSubstr("multiple of 4"), Not(HasSubstr("\n"))));
}

TEST_F(DataFile, DoesNotHangOnAPipe) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(
      error_of(ErrorCode::io, [&] { Dataset data(path("pipe"), TokenFormat::bytes, 256, 8); }),
      HasSubstr("not a regular file"));
}

TEST_F(DataFile, RefusesUnreadableFiles) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every file";
  const std::string file = write("secret", "0123456789");
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { Dataset data(file, TokenFormat::bytes, 256, 8); }),
              HasSubstr("Permission denied"));
}

TEST_F(DataFile, NamesATokenOutsideTheVocabulary) {
  Dataset data(write("text", "abcdef"), TokenFormat::bytes, 'e', 5);
  EXPECT_THAT(error_of(ErrorCode::config, [&] { inputs_of(data, 1, 5, {}); }),
              AllOf(HasSubstr("token 101 at position 4"), HasSubstr("vocabulary size 101")));
}

TEST_F(DataFile, ReportsAFileThatShrinks) {
  const std::string file = write("text", std::string(1000, 'x'));
  Dataset data(file, TokenFormat::bytes, 256, 600);
  std::filesystem::resize_file(file, 100);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { inputs_of(data, 1, 600, {}); }),
              HasSubstr("became shorter"));
}

TEST_F(DataFile, RefusesBatchesThatAreNotRows) {
  Dataset data(write("text", "abcdefghi"), TokenFormat::bytes, 256, 4);
  std::vector<std::uint32_t> inputs(6);
  std::vector<std::uint32_t> targets(6);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { data.read_batch(1, Split::train, {}, inputs, targets); }),
              HasSubstr("not rows of 4"));
}

TEST(CosineSchedule, WarmsUpThenFallsToTheFloor) {
  const train_gpt::CosineSchedule schedule{
      .peak = 1.0, .floor = 0.1, .warmup_steps = 4, .total_steps = 15};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.rate(2), 0.75);
  EXPECT_DOUBLE_EQ(schedule.rate(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.rate(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.rate(9), 0.55);  // half-way: cosine 0
  EXPECT_DOUBLE_EQ(schedule.rate(14), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(1000), 0.1);
  for (std::uint64_t step = 4; step < 14; ++step) {
    EXPECT_GT(schedule.rate(step), schedule.rate(step + 1)) << step;
  }
}

TEST(CosineSchedule, DegenerateLengthsStayFinite) {
  EXPECT_DOUBLE_EQ((train_gpt::CosineSchedule{.peak = 2, .total_steps = 0}.rate(0)), 2);
  EXPECT_DOUBLE_EQ((train_gpt::CosineSchedule{.peak = 2, .total_steps = 1}.rate(0)), 2);
  const train_gpt::CosineSchedule all_warmup{
      .peak = 2, .floor = 1, .warmup_steps = 10, .total_steps = 5};
  EXPECT_DOUBLE_EQ(all_warmup.rate(4), 1);
  EXPECT_DOUBLE_EQ(all_warmup.rate(9), 2);
}

}  // namespace
}  // namespace strata::testing
