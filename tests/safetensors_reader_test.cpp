// Directories as save_pretrained() and the cache of Hugging Face leave them, and ones that only
// look so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/safetensors.hpp"
#include "support/error_of.hpp"
#include "support/loop_file_system.hpp"
#include "support/safetensors_files.hpp"
#include "support/safetensors_invariants.hpp"

namespace strata::test {
namespace {

using safetensors::Expected;
using safetensors::Reader;
using safetensors::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

// A file with one fp32 tensor.
std::string one_tensor(const std::string& name, const std::vector<float>& values) {
  return tensor_file(R"({")" + name + R"(":{"dtype":"F32","shape":[)" +
                         std::to_string(values.size()) + R"(],"data_offsets":[0,)" +
                         std::to_string(4 * values.size()) + "]}}",
                     bytes_of(values));
}

class SafetensorsReader : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return scratch_.path() + "/" + name; }
  void write(const std::string& name, const std::string& bytes) const {
    write_bytes(path(name), bytes);
  }
  Reader open() const { return Reader::open(scratch_.path()); }
  std::string refusal(ErrorCode code) const {
    const Error error = error_of([&] { (void)open(); });
    EXPECT_EQ(error.code(), code) << error.what();
    check_refusal(error, scratch_.path());
    return error.what();
  }
  static std::vector<float> all_of(Reader& reader, const std::string& name) {
    const Tensor* tensor = reader.find(name);
    if (tensor == nullptr) return {};
    std::vector<float> values(tensor->count_elems);
    reader.read(*tensor, 0, values);
    return values;
  }

  ScratchDirectory scratch_;
};

TEST_F(SafetensorsReader, WidensEveryTypeExactlyAndReadsAnyRange) {
  const std::vector<float> fp32 = {1.5F, -0.0F, 3.0e38F, 1e-45F};
  const std::vector<std::uint16_t> bf16 = {0x3FC0, 0x8000, 0x7F80, 0x0001};  // 1.5 -0 inf denormal
  const std::vector<std::uint16_t> fp16 = {0x3E00, 0x8000, 0x7BFF, 0x0001};  // 1.5 -0 65504 2^-24
  write("model.safetensors",
        tensor_file(R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]},)"
                    R"("h":{"dtype":"F16","shape":[4],"data_offsets":[24,32]},)"
                    R"("i":{"dtype":"I64","shape":[1],"data_offsets":[32,40]}})",
                    bytes_of(fp32) + bytes_of(bf16) + bytes_of(fp16) + std::string(8, 'x')));
  Reader reader = open();
  EXPECT_EQ(reader.tensors().size(), 4U);
  EXPECT_EQ(all_of(reader, "w"), fp32);
  EXPECT_THAT(all_of(reader, "b"), ElementsAre(1.5F, -0.0F, HUGE_VALF, 0x1p-133F));
  EXPECT_THAT(all_of(reader, "h"), ElementsAre(1.5F, -0.0F, 65504.0F, 0x1p-24F));
  std::vector<float> two(2);
  reader.read(*reader.find("h"), 1, two);
  EXPECT_THAT(two, ElementsAre(-0.0F, 65504.0F));
  reader.read(*reader.find("w"), 4, std::span<float>());
  for (const auto& wrong : {std::pair("w", 3U), {"w", 5U}, {"i", 0U}}) {
    const Tensor& tensor = *reader.find(wrong.first);
    const Error error = error_of([&] { reader.read(tensor, wrong.second, two); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << tensor.name;
  }
  EXPECT_EQ(reader.find("v"), nullptr);
  EXPECT_TRUE(reader.notices().empty());
}

TEST_F(SafetensorsReader, ShardsAreReadByTheIndex) {
  write("model-00001-of-00002.safetensors", one_tensor("b", {1, 2}));
  write("model-00002-of-00002.safetensors", one_tensor("a", {3}));
  write("model.safetensors.index.json",
        R"({"metadata": {"total_size": 12, "more": [[{"of": null}]]}, "weight_map": {
            "b": "model-00001-of-00002.safetensors", "a": "model-00002-of-00002.safetensors"}})");
  Reader reader = open();
  EXPECT_THAT(all_of(reader, "a"), ElementsAre(3));
  EXPECT_THAT(all_of(reader, "b"), ElementsAre(1, 2));
  EXPECT_THAT(all_of(reader, "a"), ElementsAre(3));
  EXPECT_EQ(reader.files().size(), 2U);
  EXPECT_TRUE(reader.notices().empty());
}

TEST_F(SafetensorsReader, LinksOfTheCacheAreFollowed) {
  std::filesystem::create_directories(path("blobs"));
  std::filesystem::create_directories(path("snapshots/1"));
  write("blobs/0a1b", one_tensor("a", {3}));
  std::filesystem::create_symlink("../../blobs/0a1b", path("snapshots/1/model.safetensors"));
  Reader reader = Reader::open(path("snapshots/1"));
  EXPECT_THAT(all_of(reader, "a"), ElementsAre(3));
}

TEST_F(SafetensorsReader, TheIndexStaysInItsDirectory) {
  const std::vector<std::string> names = {"../model.safetensors",
                                          "/etc/model.safetensors",
                                          "sub/model.safetensors",
                                          "..",
                                          ".",
                                          "",
                                          "a\\\\b.safetensors",
                                          "a\\u0000.safetensors",
                                          "a\\n.safetensors",
                                          ".safetensors",
                                          ".hidden.safetensors",
                                          "pytorch_model.bin",
                                          std::string(300, 'x') + ".safetensors"};
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    write("model.safetensors.index.json", R"({"weight_map": {"a": ")" + name + R"("}})");
    EXPECT_THAT(refusal(ErrorCode::config), HasSubstr("correct the index"));
  }
}

TEST_F(SafetensorsReader, AnIndexMustBeOne) {
  const std::pair<const char*, const char*> texts[] = {
      {"", "does not begin with {"},
      {"{", "not JSON"},
      {"{}", "no weight_map"},
      {R"({"metadata": {}})", "no weight_map"},
      {R"({"weight_map": []})", "not a map"},
      {R"({"weight_map": "x"})", "not a map"},
      {R"({"weight_map": {"a": 1}})", "not a map"},
      {R"({"weight_map": {"a": {"b": "c"}}})", "not a map"},
      {R"({"weight_map": {}, "weight_map": {}})", "weight_map twice"},
      {R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})", "tensor \"a\" twice"},
      {R"({"metadata": [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]], "weight_map": {}})", "nested deeper"},
  };
  for (const auto& [text, message] : texts) {
    SCOPED_TRACE(text);
    write("model.safetensors.index.json", text);
    EXPECT_THAT(refusal(ErrorCode::corrupt), HasSubstr(message));
  }
}

TEST_F(SafetensorsReader, WhatTheIndexPromisesMustBeThereAndTheRestIsTold) {
  write("model-00001-of-00002.safetensors", one_tensor("a", {1}));
  write("model.safetensors.index.json",
        R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                           "b": "model-00001-of-00002.safetensors"}})");
  EXPECT_THAT(refusal(ErrorCode::corrupt), HasSubstr("the index puts \"b\" into files"));
  write("model.safetensors.index.json",
        R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                           "b": "model-00002-of-00002.safetensors"}})");
  const std::string missing = error_of([&] { (void)open(); }).what();
  EXPECT_THAT(missing, HasSubstr("No such file"));
  EXPECT_THAT(missing, HasSubstr(path("model-00002-of-00002.safetensors")));
  // A tensor of another place, a tensor of nobody, and a file of nobody.
  write("model-00002-of-00002.safetensors", one_tensor("b", {2}));
  write("model-00003-of-00002.safetensors", one_tensor("c", {4}));
  write("model-00001-of-00002.safetensors",
        tensor_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                    bytes_of<float>({1, 9})));
  Reader reader = open();
  EXPECT_THAT(all_of(reader, "b"), ElementsAre(2));
  EXPECT_THAT(reader.notices(),
              ElementsAre(HasSubstr("model-00001-of-00002.safetensors holds \"b\""),
                          HasSubstr("does not name \"model-00003-of-00002.safetensors\"")));
}

TEST_F(SafetensorsReader, OneFileComesBeforeAnIndex) {
  write("model.safetensors", one_tensor("a", {1}));
  write("model.safetensors.index.json", "not even JSON");
  EXPECT_THAT(open().notices(), ElementsAre(HasSubstr("model.safetensors is read")));
}

TEST_F(SafetensorsReader, ADirectoryWithoutWeightsIsTold) {
  EXPECT_THAT(refusal(ErrorCode::config), HasSubstr("name one that save_pretrained() wrote"));
  write("pytorch_model.bin", "x");
  EXPECT_THAT(refusal(ErrorCode::config), HasSubstr("safe_serialization=True"));
  const Error missing = error_of([&] { (void)Reader::open(path("missing")); });
  EXPECT_EQ(missing.code(), ErrorCode::io);
  EXPECT_THAT(missing.what(), HasSubstr("no such directory"));
  std::filesystem::create_directory(path("model.safetensors"));
  EXPECT_THAT(error_of([&] { (void)open(); }).what(), HasSubstr("not a regular file"));
}

TEST_F(SafetensorsReader, MatchListsWhatIsMissingWrongOrExtra) {
  write("model.safetensors",
        tensor_file(R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                    R"("i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
                    R"("x":{"dtype":"U8","shape":[],"data_offsets":[16,17]}})",
                    std::string(17, 'x')));
  const Reader reader = open();
  const auto refused = [&](const std::vector<Expected>& expected) {
    const Error error = error_of([&] { (void)reader.match(expected); });
    EXPECT_EQ(error.code(), ErrorCode::config);
    check_refusal(error, scratch_.path());
    return std::string(error.what());
  };
  EXPECT_THAT(reader.match(std::vector<Expected>{{"a", {2, 1}}}), ElementsAre("i", "x"));
  EXPECT_THAT(refused({{"a", {1, 2}}}), HasSubstr("tensor \"a\" has the shape (2, 1), the model "
                                                  "needs (1, 2)"));
  EXPECT_THAT(refused({{"a", {2}}}), HasSubstr("needs (2)"));
  EXPECT_THAT(refused({{"i", {1}}}), HasSubstr("tensor \"i\" has elements of I64"));
  EXPECT_THAT(refused({{"b", {1}}, {"a", {2, 1}}, {"c", {1}}}),
              HasSubstr("do not hold \"b\" and \"c\""));
  std::vector<Expected> many;
  for (int i = 0; i < 500; ++i) many.push_back({"m" + std::to_string(i), {1}});
  EXPECT_THAT(refused(many), HasSubstr("\"m4\" and 495 more"));
}

TEST_F(SafetensorsReader, AFileThatChangedIsNotReadByItsOldHeader) {
  write("model.safetensors", one_tensor("a", {1, 2, 3}));
  Reader reader = open();
  write("new", one_tensor("b", {1}));
  std::filesystem::rename(path("new"), path("model.safetensors"));
  const Error error = error_of([&] { (void)all_of(reader, "a"); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_THAT(error.what(), HasSubstr("has changed since its header was read"));
}

TEST_F(SafetensorsReader, AFileThatShrinksWhileItIsReadIsTold) {
  write("model.safetensors", one_tensor("a", {1, 2, 3}));
  Reader reader = open();
  ASSERT_EQ(all_of(reader, "a").size(), 3U);
  std::filesystem::resize_file(path("model.safetensors"),
                               std::filesystem::file_size(path("model.safetensors")) - 4);
  EXPECT_THAT(error_of([&] { (void)all_of(reader, "a"); }).what(), HasSubstr("the file ends at"));
}

}  // namespace
}  // namespace strata::test
