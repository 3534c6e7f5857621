// Exports: the right bytes whoever writes which part in which order, whole files under final names
// or none, and one clear error from a disk that is full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "strata/safetensors.hpp"
#include "support/error_of.hpp"
#include "support/loop_file_system.hpp"
#include "support/safetensors_files.hpp"

namespace strata::test {
namespace {

using safetensors::OutputTensor;
using safetensors::Reader;
using safetensors::Writer;
using safetensors::WriterOptions;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<float> values_of(std::size_t tensor, std::uint64_t count) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(rng::uniform(tensor, i) - 0.5);
  }
  return values;
}

std::uint64_t count_of(const OutputTensor& tensor) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : tensor.shape) count *= extent;
  return count;
}

// Rounds to nearest even by the definition: 8 bits of significand.
float rounded_to_bf16(float value) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rest = bits & 0xFFFFU;
  bits -= rest;
  if (rest > 0x8000U || (rest == 0x8000U && (bits & 0x10000U) != 0)) bits += 0x10000U;
  return std::bit_cast<float>(bits);
}

std::map<std::string, std::string> contents(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files[entry.path().filename().string()] = read_bytes(entry.path().string());
  }
  return files;
}

class SafetensorsWriter : public testing::Test {
 protected:
  std::string path(const std::string& name = "out") const { return scratch_.path() + "/" + name; }

  ScratchDirectory scratch_;
};

TEST_F(SafetensorsWriter, WritesTheFormatByteForByte) {
  Writer writer(path(), {{"a", DType::bf16, {2}}, {"b\"", DType::fp32, {1, 1}}});
  writer.create();
  writer.write(0, 0, std::vector<float>{1, -2});
  writer.write(1, 0, std::vector<float>{1});
  writer.commit();
  // Those of 32 bits first; spaces to a multiple of 8.
  std::string json = R"({"__metadata__":{"format":"pt"},)"
                     R"("b\"":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
                     R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::string data("\x00\x00\x80\x3F\x80\x3F\x00\xC0", 8);
  EXPECT_EQ(read_bytes(path("out/model.safetensors")), tensor_file(json, data));
  EXPECT_THAT(writer.file_names(), ElementsAre("model.safetensors"));
}

const std::vector<OutputTensor>& some_tensors() {
  static const std::vector<OutputTensor> tensors = {
      {"model.embed_tokens.weight", DType::fp32, {300, 64}},
      {"norm", DType::bf16, {64}},
      {"name with \"quotes\", \\ and \xC3\xBC", DType::fp16, {7, 3, 2}},
      {"scalar", DType::fp32, {}},
      {"nothing", DType::bf16, {4, 0}},
      {"last", DType::bf16, {1'100'000}},
  };
  return tensors;
}

// All ranges of all tensors, cut at random, in random order; each goes to the writer that `whose`
// names.
template <class Whose>
void write_all(std::vector<Writer>& writers, std::uint64_t seed, Whose&& whose) {
  struct Range {
    std::size_t tensor;
    std::uint64_t begin, end;
  };
  std::vector<Range> ranges;
  std::uint64_t draw = 0;
  for (std::size_t t = 0; t < some_tensors().size(); ++t) {
    const std::uint64_t count = count_of(some_tensors()[t]);
    for (std::uint64_t begin = 0; begin < count;) {
      const std::uint64_t length = 1 + rng::at(seed, draw++) % (count / 3 + 1);
      const std::uint64_t end = std::min(count, begin + length);
      ranges.push_back({t, begin, end});
      begin = end;
    }
  }
  for (std::size_t i = ranges.size(); i > 1; --i) {
    std::swap(ranges[i - 1], ranges[rng::at(seed, draw++) % i]);
  }
  for (const Range& range : ranges) {
    const auto values = values_of(range.tensor, count_of(some_tensors()[range.tensor]));
    writers[whose(draw++)].write(range.tensor, range.begin,
                                 std::span(values).subspan(range.begin, range.end - range.begin));
  }
}

std::map<std::string, std::string> export_by(const std::string& directory, std::size_t ranks,
                                             const WriterOptions& options, std::uint64_t seed) {
  std::vector<Writer> writers;
  for (std::size_t r = 0; r < ranks; ++r) writers.emplace_back(directory, some_tensors(), options);
  writers[0].create();
  write_all(writers, seed, [&](std::uint64_t draw) { return rng::at(seed + 1, draw) % ranks; });
  std::uint64_t written = 0;
  for (Writer& writer : writers) {
    writer.flush();
    written += writer.written_elems();
  }
  EXPECT_EQ(written, writers[0].count_elems());
  for (const auto& [name, bytes] : contents(directory)) {
    EXPECT_TRUE(name.ends_with(".partial")) << name << " has its name before all have written";
  }
  writers[0].commit();
  return contents(directory);
}

TEST_F(SafetensorsWriter, ComesBackFromAnyOrderAnyRanksAndAnyShards) {
  for (const Bytes limit : {Bytes{1 << 30}, Bytes{100'000}, Bytes{1}}) {
    SCOPED_TRACE(limit.value);
    const WriterOptions options{.most_file_bytes = limit, .companions = {{"config.json", "{}\n"}}};
    std::map<std::string, std::string> first;
    for (const std::size_t ranks : {1, 2, 3}) {
      const std::string directory = path(std::to_string(limit.value) + "-" + std::to_string(ranks));
      const auto files = export_by(directory, ranks, options, ranks);
      if (ranks == 1) first = files;
      EXPECT_TRUE(files == first) << ranks << " ranks wrote other bytes than one";
      Reader reader = Reader::open(directory);
      EXPECT_THAT(reader.notices(), IsEmpty());
      for (std::size_t t = 0; t < some_tensors().size(); ++t) {
        const OutputTensor& expected = some_tensors()[t];
        const safetensors::Tensor* tensor = reader.find(expected.name);
        ASSERT_NE(tensor, nullptr) << expected.name;
        EXPECT_EQ(tensor->shape, expected.shape);
        EXPECT_EQ(tensor->dtype, expected.dtype);
        EXPECT_EQ(tensor->offset_bytes % size_of(expected.dtype).value, 0U);
        std::vector<float> values(tensor->count_elems);
        reader.read(*tensor, 0, values);
        const auto written = values_of(t, tensor->count_elems);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (expected.dtype == DType::fp32) {
            ASSERT_EQ(values[i], written[i]);
          } else if (expected.dtype == DType::bf16) {
            ASSERT_EQ(values[i], rounded_to_bf16(written[i]));
          } else {
            ASSERT_NEAR(values[i], written[i], 0x1p-12);  // 11 bits below 1/2
          }
        }
      }
    }
    EXPECT_EQ(first.at("config.json"), "{}\n");
    EXPECT_EQ(first.count("model.safetensors.index.json"), limit > Bytes{1'000'000'000} ? 0U : 1U);
  }
}

TEST_F(SafetensorsWriter, FilesKeepTheirLimitAndAreNamedByTheIndex) {
  const std::vector<OutputTensor> tensors = {{"a", DType::fp32, {10}},
                                             {"b", DType::fp32, {10}},
                                             {"c", DType::fp32, {11}},
                                             {"d", DType::fp32, {30}},
                                             {"e", DType::fp32, {1}}};
  Writer writer(path(), tensors, {.most_file_bytes = Bytes{80}});
  writer.create();
  writer.commit();
  EXPECT_THAT(writer.file_names(),
              ElementsAre("model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                          "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                          "model.safetensors.index.json"));
  const std::string index = read_bytes(path("out/model.safetensors.index.json"));
  EXPECT_THAT(index, HasSubstr("\"total_size\": 248"));
  EXPECT_THAT(index, HasSubstr("\"b\": \"model-00001-of-00004.safetensors\""));
  EXPECT_THAT(index, HasSubstr("\"d\": \"model-00003-of-00004.safetensors\""));
}

TEST_F(SafetensorsWriter, WhatIsNotCommittedLeavesNothing) {
  {
    Writer writer(path(), some_tensors(), {.companions = {{"config.json", "{}"}}});
    Writer other(path(), some_tensors());
    writer.create();
    other.write(3, 0, std::vector<float>{1});
    EXPECT_THAT(contents(path()), UnorderedElementsAre(testing::Key("model.safetensors.partial"),
                                                       testing::Key("config.json.partial")));
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
  std::filesystem::create_directory(path());
  write_bytes(path("out/notes.txt"), "mine");
  {
    Writer writer(path(), some_tensors());
    writer.create();
  }
  EXPECT_THAT(contents(path()), ElementsAre(testing::Pair("notes.txt", "mine")));
}

TEST_F(SafetensorsWriter, DirectoriesThatCannotTakeAModelAreRefused) {
  const auto refused = [&](const std::string& name, const char* message) {
    SCOPED_TRACE(name);
    const Error error = error_of([&] { Writer::check_destination(path(name)); });
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_THAT(error.what(), HasSubstr(message));
    Writer writer(path(name), some_tensors());
    EXPECT_EQ(error_of([&] { writer.create(); }).code(), ErrorCode::config);
  };
  refused("missing/out", "does not exist; create it");
  write_bytes(path("file"), "x");
  refused("file", "not a directory");
  for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors",
                           "model.safetensors.index.json", "config.json", "x.partial"}) {
    std::filesystem::remove_all(path());
    std::filesystem::create_directory(path());
    write_bytes(path("out/" + std::string(name)), "x");
    refused("out", name);
    EXPECT_EQ(contents(path()).size(), 1U);
  }
  Writer::check_destination(path("new"));
  Writer::check_destination(path("new/"));
  EXPECT_FALSE(std::filesystem::exists(path("new")));
}

TEST_F(SafetensorsWriter, MistakesOfTheCallerAreTold) {
  const auto refused = [&](const std::vector<OutputTensor>& tensors, WriterOptions options = {}) {
    const Error error = error_of([&] { Writer writer(path(), tensors, std::move(options)); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return std::string(error.what());
  };
  EXPECT_THAT(refused({}), HasSubstr("no tensor"));
  EXPECT_THAT(refused({{"a", DType::fp32, {1}}, {"a", DType::fp32, {1}}}), HasSubstr("twice"));
  EXPECT_THAT(refused({{"__metadata__", DType::fp32, {1}}}), HasSubstr("keeps for itself"));
  EXPECT_THAT(refused({{"a", DType::fp32, {1ULL << 40, 1ULL << 40}}}), HasSubstr("too large"));
  EXPECT_THAT(refused({{"\xFF", DType::fp32, {1}}}), HasSubstr("not UTF-8"));
  for (const char* name : {"", "..", "a/b", "model.safetensors", "model.safetensors.index.json"}) {
    refused({{"a", DType::fp32, {1}}}, {.companions = {{name, ""}}});
  }
  Writer writer(path(), {{"a", DType::fp32, {2}}});
  EXPECT_EQ(error_of([&] { writer.commit(); }).code(), ErrorCode::invalid_argument);
  writer.create();
  const std::vector<float> two(2);
  for (const auto& wrong : {std::pair(0U, 1U), {0U, 3U}, {1U, 0U}}) {
    EXPECT_EQ(error_of([&] { writer.write(wrong.first, wrong.second, two); }).code(),
              ErrorCode::invalid_argument);
  }
}

TEST_F(SafetensorsWriter, NoFiniteValueBecomesInfinite) {
  Writer writer(path(), {{"h", DType::fp16, {1}}, {"b", DType::bf16, {1}}});
  writer.create();
  const auto write = [&](std::size_t tensor, float value) {
    writer.write(tensor, 0, std::vector<float>{value});
  };
  write(0, 65519.996F);
  write(0, -HUGE_VALF);
  write(1, 0x1.FEFFFEp127F);
  for (const auto& large : {std::pair(0U, 65520.0F), {0U, -1e6F}, {1U, 0x1.FFp127F}}) {
    const Error error = error_of([&] { write(large.first, large.second); });
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_THAT(error.what(), HasSubstr(large.first == 0 ? "tensor \"h\"" : "tensor \"b\""));
    EXPECT_THAT(error.what(), HasSubstr("cannot hold; export another type"));
  }
}

TEST_F(SafetensorsWriter, AFullDiskIsToldBeforeTheFirstElement) {
  std::string why_not;
  const auto system = LoopFileSystem::mount({.size = 16_MiB}, why_not);
  if (system == nullptr) GTEST_SKIP() << why_not;
  const std::string directory = system->path() + "/out";
  {
    Writer writer(directory, {{"a", DType::fp32, {1 << 20}}, {"b", DType::fp32, {4 << 20}}},
                  {.most_file_bytes = 4_MiB});
    const Error error = error_of([&] { writer.create(); });
    EXPECT_EQ(error.code(), ErrorCode::no_space);
    EXPECT_THAT(error.what(), HasSubstr("no room for a file of 16 MiB; free space or export to "
                                        "another directory: No space left on device"));
    EXPECT_THAT(error.what(), HasSubstr("model-00002-of-00002.safetensors.partial"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory));
}

// A file system that promises more than the device below it can hold.
TEST_F(SafetensorsWriter, ADeviceThatFillsUpLaterIsToldBeforeTheRename) {
  std::string why_not;
  const auto small = LoopFileSystem::mount({.size = 16_MiB}, why_not);
  if (small == nullptr) GTEST_SKIP() << why_not;
  const auto thin = LoopFileSystem::mount({.size = 64_MiB, .parent = small->path()}, why_not);
  ASSERT_NE(thin, nullptr) << why_not;
  const std::string directory = thin->path() + "/out";
  {
    Writer writer(directory, {{"a", DType::fp32, {8 << 20}}});
    writer.create();
    const Error error = error_of([&] {
      writer.write(0, 0, std::vector<float>(8 << 20, 1.0F));
      writer.commit();
    });
    EXPECT_TRUE(error.code() == ErrorCode::io || error.code() == ErrorCode::no_space);
    EXPECT_THAT(error.what(), HasSubstr("model.safetensors.partial"));
    EXPECT_FALSE(std::filesystem::exists(directory + "/model.safetensors"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST_F(SafetensorsWriter, AWriteThatFailsIsToldAndLeavesNothing) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  {
    Writer writer(path(), {{"a", DType::fp32, {1 << 20}}});
    writer.create();
    const rlimit small{.rlim_cur = 1 << 20, .rlim_max = old.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const Error error = error_of([&] { writer.write(0, 0, std::vector<float>(1 << 20)); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_EQ(error.code(), ErrorCode::no_space);
    EXPECT_THAT(error.what(), HasSubstr("cannot write the file; free space"));
  }
  ::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(SafetensorsWriter, ARankThatSeesNoFileOfTheFirstIsTold) {
  Writer writer(path(), {{"a", DType::fp32, {2}}});
  const std::vector<float> two(2);
  EXPECT_THAT(error_of([&] { writer.write(0, 0, two); }).what(),
              HasSubstr("a file system that all ranks share"));
  std::filesystem::create_directory(path());
  write_bytes(path("out/model.safetensors.partial"), "of another export");
  EXPECT_THAT(error_of([&] { writer.write(0, 0, two); }).what(),
              HasSubstr("a file system that all ranks share"));
}

}  // namespace
}  // namespace strata::test
