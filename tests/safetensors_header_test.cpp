// Headers that nobody should trust: each rule of the format broken by a small file, and random
// edits of good headers, whose answer is a header that holds or one line that names the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "strata/safetensors.hpp"
#include "support/error_of.hpp"
#include "support/loop_file_system.hpp"
#include "support/safetensors_files.hpp"
#include "support/safetensors_invariants.hpp"

namespace strata::test {
namespace {

using safetensors::parse_header;
using safetensors::parse_index;
using safetensors::Reader;
using testing::HasSubstr;

struct Hostile {
  const char* name;
  std::string json;
  std::uint64_t data_bytes;
  const char* message;
};

std::string entry(const std::string& fields) { return R"({"a": {)" + fields + "}}"; }

std::vector<Hostile> hostile_headers() {
  const std::string deep(50, '[');
  return {
      {"empty", "", 0, "does not begin with {"},
      {"a list", "[]", 0, "does not begin with {"},
      {"byte order mark", "\xEF\xBB\xBF{}", 0, "does not begin with {"},
      {"half", R"({"a": {"dtype": "F32")", 4, "not JSON at byte"},
      {"garbage behind", "{} x", 0, "not JSON at byte"},
      {"NUL behind", std::string("{}\0garbage", 10), 0, "NUL at byte 2"},
      {"bad UTF-8", "{\"\xC3\x28\": {}}", 0, "not UTF-8 at byte"},
      {"overlong UTF-8", "{\"\xC0\xAF\": {}}", 0, "not UTF-8 at byte"},
      {"half a surrogate", R"({"\ud800": {}})", 0, "not JSON at byte"},
      {"deep", R"({"a": {"shape": )" + deep, 0, "nested deeper"},
      {"deep metadata", R"({"__metadata__": {"x": )" + deep, 0, "map from strings to strings"},
      {"a number", R"({"a": 5})", 0, "tensor \"a\" is not an object"},
      {"a list of tensors", R"({"a": [1]})", 0, "tensor \"a\" is not an object"},
      {"twice", R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
       4, "tensor \"a\" is there twice"},
      {"field twice", entry(R"("dtype": "F32", "dtype": "F32")"), 0, "has \"dtype\" twice"},
      {"unknown field", entry(R"("dtype": "F32", "strides": [1])"), 0, "field \"strides\""},
      {"no dtype", entry(R"("shape": [1], "data_offsets": [0, 4])"), 4, "has no dtype"},
      {"no shape", entry(R"("dtype": "F32", "data_offsets": [0, 4])"), 4, "has no shape"},
      {"no offsets", entry(R"("dtype": "F32", "shape": [1])"), 4, "has no data_offsets"},
      {"unknown dtype", entry(R"("dtype": "F33", "shape": [1], "data_offsets": [0, 4])"), 4,
       "dtype \"F33\""},
      {"dtype a number", entry(R"("dtype": 32, "shape": [1], "data_offsets": [0, 4])"), 4,
       "dtype that is not a string"},
      {"dtype a list", entry(R"("dtype": ["F32"], "shape": [1], "data_offsets": [0, 4])"), 4,
       "dtype that is not a string"},
      {"shape a number", entry(R"("dtype": "F32", "shape": 1, "data_offsets": [0, 4])"), 4,
       "shape that is not a list of whole numbers"},
      {"shape of strings", entry(R"("dtype": "F32", "shape": ["1"], "data_offsets": [0, 4])"), 4,
       "shape that is not a list of whole numbers"},
      {"shape of objects", entry(R"("dtype": "F32", "shape": [{}], "data_offsets": [0, 4])"), 4,
       "nested deeper"},
      {"negative", entry(R"("dtype": "F32", "shape": [-1], "data_offsets": [0, 4])"), 4,
       "shape that is not a list of whole numbers"},
      {"a fraction", entry(R"("dtype": "F32", "shape": [1.0], "data_offsets": [0, 4])"), 4,
       "shape that is not a list of whole numbers"},
      {"2^64", entry(R"("dtype": "F32", "shape": [18446744073709551616], "data_offsets": [0, 4])"),
       4, "shape that is not a list of whole numbers"},
      {"shape overflows",
       entry(R"("dtype": "F32", "shape": [4294967296, 4294967297], "data_offsets": [0, 4])"), 4,
       "whose elements no 64 bits count"},
      // 2^62 elements of 4 bytes are 0 modulo 2^64.
      {"bytes overflow", entry(R"("dtype": "F32", "shape": [4611686018427387904],
                                   "data_offsets": [0, 0])"),
       0, "which are no number of bytes"},
      {"half a byte", entry(R"("dtype": "F4", "shape": [3], "data_offsets": [0, 2])"), 2,
       "which are no number of bytes"},
      {"backwards", entry(R"("dtype": "F32", "shape": [1], "data_offsets": [4, 0])"), 4,
       "end before they begin"},
      {"one offset", entry(R"("dtype": "F32", "shape": [1], "data_offsets": [4])"), 4,
       "not two numbers"},
      {"three offsets", entry(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4])"), 4,
       "not two numbers"},
      {"too few bytes", entry(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 4])"), 4,
       "a shape of 8 bytes and data_offsets of 4"},
      {"too many bytes", entry(R"("dtype": "BF16", "shape": [1], "data_offsets": [0, 4])"), 4,
       "a shape of 2 bytes and data_offsets of 4"},
      {"beyond the file", entry(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])"), 4,
       "ends at byte 8 of the data, of which the file has 4"},
      {"far beyond", entry(R"("dtype": "U8", "shape": [18446744073709551615],
                               "data_offsets": [0, 18446744073709551615])"),
       4, "of the data, of which the file has 4"},
      {"hole before", entry(R"("dtype": "F32", "shape": [1], "data_offsets": [4, 8])"), 8,
       "leaves a hole behind byte 0"},
      {"hole between", R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                           "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}})",
       12, "tensor \"b\" begins at byte 8, which leaves a hole behind byte 4"},
      {"bytes behind", entry(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4])"), 6,
       "2 bytes behind its last tensor"},
      {"data of nobody", "{}", 6, "6 bytes behind its last tensor"},
      {"overlap", R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                      "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
       8, "tensor \"b\" overlaps \"a\""},
      {"the same place", R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                             "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
       4, "overlaps"},
      {"nothing inside something", R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                                       "b": {"dtype": "F32", "shape": [0],
                                             "data_offsets": [4, 4]}})",
       8, "overlaps"},
      {"metadata a string", R"({"__metadata__": "pt"})", 0, "map from strings to strings"},
      {"metadata a list", R"({"__metadata__": ["pt"]})", 0, "map from strings to strings"},
      {"metadata of numbers", R"({"__metadata__": {"a": 1}})", 0, "map from strings to strings"},
      {"metadata of maps", R"({"__metadata__": {"a": {}}})", 0, "map from strings to strings"},
      {"metadata twice", R"({"__metadata__": {}, "__metadata__": {}})", 0, "__metadata__ twice"},
      {"metadata key twice", R"({"__metadata__": {"a": "1", "a": "2"}})", 0, "has \"a\" twice"},
      {"a name for a terminal", "{\"a\\u001b[2J\\n\": 5}", 0, "tensor \"a\\x1b[2J\\x0a\""},
      {"a long name", R"({")" + std::string(5000, 'n') + R"(": 5})", 0, "nnn...nnn"},
  };
}

TEST(SafetensorsHeader, EveryBrokenRuleIsRefusedWithFileAndTensor) {
  for (const Hostile& hostile : hostile_headers()) {
    SCOPED_TRACE(hostile.name);
    const ScratchDirectory scratch;
    const std::string path = scratch.path() + "/model.safetensors";
    write_bytes(path, tensor_file(hostile.json, std::string(hostile.data_bytes, 'x')));
    const Error error = error_of([&] { (void)Reader::open(scratch.path()); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_THAT(error.what(), HasSubstr(hostile.message));
    EXPECT_THAT(error.what(), HasSubstr("fetch or save the file again (path " + path + ")"));
    check_refusal(error, path);
  }
}

TEST(SafetensorsHeader, LengthsAreCheckedBeforeAnythingIsRead) {
  const struct {
    const char* name;
    std::string bytes;
    const char* message;
  } files[] = {
      {"empty", "", "the file has 0 bytes"},
      {"seven bytes", std::string(7, '\0'), "the file has 7 bytes"},
      {"longer than the file", length_word(100) + "{}", "claims 100 bytes, more than the file"},
      {"one too long", length_word(3) + "{}", "claims 3 bytes, more than the file"},
      {"beyond the limit", length_word(100'000'001) + "{}", "more than the format's limit"},
      {"wraps around", length_word(0xFFFFFFFFFFFFFFF8ULL) + "{}", "more than the format's limit"},
      {"no header", length_word(0), "does not begin with {"},
  };
  for (const auto& file : files) {
    SCOPED_TRACE(file.name);
    const ScratchDirectory scratch;
    write_bytes(scratch.path() + "/model.safetensors", file.bytes);
    const Error error = error_of([&] { (void)Reader::open(scratch.path()); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_THAT(error.what(), HasSubstr(file.message));
    check_refusal(error, scratch.path());
  }
}

TEST(SafetensorsHeader, WhatTheFormatAllowsIsRead) {
  const auto good = [](const std::string& json, std::uint64_t data_bytes) {
    const safetensors::Header header = parse_header(json, data_bytes, "FILE");
    check_header(header, data_bytes);
    return header;
  };
  EXPECT_TRUE(good("{}", 0).tensors.empty());
  EXPECT_EQ(good("{ }      ", 0).tensors.size(), 0U);
  // A scalar, no elements at all, and places in another order than names.
  const auto header = good(R"({"z": {"data_offsets": [0, 4], "shape": [], "dtype": "F32"},
               "none": {"dtype": "F32", "shape": [3, 0], "data_offsets": [4, 4]},
               "a\u00fc\"": {"dtype": "F16", "shape": [1, 2], "data_offsets": [4, 8]},
               "__metadata__": {"format": "pt", "": ""}}  )",
                           8);
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "a\xC3\xBC\"");
  EXPECT_EQ(header.tensors[2].count_elems, 1U);
  EXPECT_EQ(header.metadata.size(), 2U);
  for (const char* word : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"}) {
    good(entry(R"("shape": [3], "data_offsets": [0, 3], "dtype": ")" + std::string(word) + '"'), 3);
  }
  for (const char* word : {"F64", "I64", "U64", "C64"}) {
    good(entry(R"("shape": [1], "data_offsets": [0, 8], "dtype": ")" + std::string(word) + '"'), 8);
  }
  good(entry(R"("shape": [4], "data_offsets": [0, 3], "dtype": "F6_E2M3")"), 3);
}

// No tree of JSON values, whatever the header claims: a fixed multiple of its length.
TEST(SafetensorsHeader, MemoryIsBoundedByTheHeader) {
  const auto peak_bytes = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::uint64_t>(usage.ru_maxrss) << 10;
  };
  std::string json = "{";
  for (int i = 0; i < 100'000; ++i) {
    json += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
            R"(":{"dtype":"F32","shape":[0,1,2],"data_offsets":[0,0]})";
  }
  json += "}";
  const std::uint64_t before = peak_bytes();
  EXPECT_EQ(parse_header(json, 0, "FILE").tensors.size(), 100'000U);
  const std::string open = R"({"a":{"shape":)" + std::string(json.size(), '[');
  EXPECT_EQ(error_of([&] { (void)parse_header(open, 0, "FILE"); }).code(), ErrorCode::corrupt);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(peak_bytes() - before, 12 * json.size());
#endif
}

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return rng::at(seed_, index_++) % limit; }

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

struct Text {
  std::string json;
  std::uint64_t data_bytes = 0;
};

Text valid_header(Draws& draws) {
  constexpr std::pair<const char*, std::uint64_t> kTypes[] = {
      {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"I64", 8}, {"BOOL", 1}};
  Text text{.json = "{", .data_bytes = 0};
  if (draws.below(2) == 0) text.json += R"("__metadata__":{"format":"pt","x":"\u00fc"},)";
  const std::uint64_t count = 1 + draws.below(4);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto& [word, width] = kTypes[draws.below(std::size(kTypes))];
    const std::uint64_t rows = draws.below(3);
    const std::uint64_t cols = 1 + draws.below(5);
    const std::uint64_t end = text.data_bytes + rows * cols * width;
    text.json += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + R"(":{"dtype":")" + word +
                 R"(","shape":[)" + std::to_string(rows) + "," + std::to_string(cols) +
                 R"(],"data_offsets":[)" + std::to_string(text.data_bytes) + "," +
                 std::to_string(end) + "]}";
    text.data_bytes = end;
  }
  text.json += "}";
  return text;
}

constexpr std::string_view kPieces[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "\\",
                                        "0",
                                        "1",
                                        "-1",
                                        "1e400",
                                        "0.5",
                                        "null",
                                        "true",
                                        "18446744073709551615",
                                        "\xFF",
                                        "\xC3",
                                        "\"\"",
                                        "\\u0000",
                                        "t0",
                                        "F32",
                                        "F4",
                                        "\"shape\":[",
                                        "[[[[",
                                        "2,",
                                        "dtype",
                                        "data_offsets",
                                        "__metadata__",
                                        "\"weight_map\":{",
                                        std::string_view("\0", 1)};

void mutate(std::string& text, Draws& draws) {
  const std::size_t at = draws.below(text.size() + 1);
  const std::size_t length = draws.below(12);
  switch (draws.below(6)) {
    case 0: text.insert(at, kPieces[draws.below(std::size(kPieces))]); break;
    case 1: text.erase(at, length); break;
    case 2: text.insert(at, text.substr(draws.below(text.size() + 1), length)); break;
    case 3: text.insert(at, 1, static_cast<char>(draws.below(256))); break;
    case 4:
      if (at < text.size()) text[at] = static_cast<char>(draws.below(256));
      break;
    case 5:  // a digit of a shape or an offset
      if (const auto digit = text.find_first_of("0123456789", at); digit != text.npos) {
        text[digit] = static_cast<char>('0' + draws.below(10));
      }
      break;
  }
}

TEST(SafetensorsHeader, RandomEditsParseOrFailWithOneLine) {
  constexpr std::uint64_t kTexts = 60'000;
  std::uint64_t parsed = 0;
  for (std::uint64_t seed = 0; seed < kTexts; ++seed) {
    Draws draws(seed);
    Text text = valid_header(draws);
    for (std::uint64_t edits = draws.below(4); edits > 0; --edits) mutate(text.json, draws);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << text.json);
    try {
      check_header(parse_header(text.json, text.data_bytes, "FILE"), text.data_bytes);
      ++parsed;
    } catch (const Error& error) {
      check_refusal(error, "FILE");
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
    }
  }
  // Both outcomes must have been seen, or the test would show nothing.
  EXPECT_GT(parsed, kTexts / 5);
  EXPECT_LT(parsed, kTexts / 5 * 4);
}

TEST(SafetensorsIndex, RandomEditsParseOrFailWithOneLine) {
  const std::string good = R"({"metadata":{"total_size":12},"weight_map":{)"
                           R"("a":"model-00001-of-00002.safetensors","b":"b.safetensors"}})";
  constexpr std::uint64_t kTexts = 20'000;
  std::uint64_t parsed = 0;
  for (std::uint64_t seed = 0; seed < kTexts; ++seed) {
    Draws draws(seed);
    std::string text = good;
    for (std::uint64_t edits = draws.below(4); edits > 0; --edits) mutate(text, draws);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << text);
    try {
      check_index(parse_index(text, "FILE"));
      ++parsed;
    } catch (const Error& error) {
      check_refusal(error, "FILE");
    }
  }
  EXPECT_GT(parsed, kTexts / 5);
  EXPECT_LT(parsed, kTexts / 5 * 4);
}

}  // namespace
}  // namespace strata::test
