#include "strata/config.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "session/config_keys.hpp"
#include "session/config_suggest.hpp"

namespace strata {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Config parse(std::string_view text) { return Config::from_json(text, "strata.json"); }

// The message of the Error(config) that `call` throws.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::config) << error.what();
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    return error.what();
  }
  return "no error";
}

std::string parse_error(std::string_view text) {
  return error_of([text] { parse(text); });
}

struct Golden {
  std::string_view text;
  std::string_view message;
};

void expect_messages(std::initializer_list<Golden> cases) {
  for (const Golden& one : cases) EXPECT_EQ(parse_error(one.text), one.message) << one.text;
}

TEST(Config, ADepthByItselfIsValid) {
  EXPECT_EQ(parse(R"({"nvme": {"queue_depth": 1}})").nvme.queue_depth, 1U);
}

TEST(Config, AnEmptyObjectTakesEveryDefault) {
  EXPECT_EQ(parse("{}"), Config{});
  EXPECT_EQ(parse(" \n{ \"budgets\" : {} , \"nvme\":{}}\r\n"), Config{});
  EXPECT_EQ(parse("\xEF\xBB\xBF{}"), Config{});
}

TEST(Config, ReadsEveryKey) {
  const Config config = parse(R"({
    "budgets": {"device": "1.5GiB", "host": "2GB", "nvme": 1048576, "scope": "per_node"},
    "placement": {"param": "host", "grad": {"host": 1},
                  "optimizer": {"device": 0.2, "host": 0.3, "nvme": 0.5}, "activation": "nvme"},
    "nvme": {"directories": ["/mnt/a", "b \"ü\" \\"], "run": "run-1.b_C", "allow_tmpfs": true,
             "weights": [1, 2.5], "backend": "posix", "queue_depth": 8, "write_depth": 3,
             "verify": "off", "spare_slots": 2, "retry_s": 0.5, "timeout_s": 30},
    "precision": {"param": "fp32", "reduce": "bf16", "wide_gradients": true},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "beta1": 0.8, "beta2": 0.9,
                  "epsilon": 1e-6, "weight_decay": 0, "clip_norm": 1.5, "nonfinite": "abort"},
    "engine": {"max_live_units": 3, "max_micro_batches": 16, "tile": "512KiB", "workers": 2},
    "communicator": {"timeout_s": 0.5, "shared_memory": false, "window": "64 KiB"},
    "outside": {"device": "300MiB", "host": "4096"}
  })");
  EXPECT_EQ(config.budgets.device, 1536_MiB);
  EXPECT_EQ(config.budgets.host, Bytes{2'000'000'000});
  EXPECT_EQ(config.budgets.nvme, 1_MiB);
  EXPECT_EQ(config.budgets.scope, Config::BudgetScope::per_node);
  EXPECT_EQ(config.placement.param, (TierFractions{0, 1, 0}));
  EXPECT_EQ(config.placement.grad, (TierFractions{0, 1, 0}));
  EXPECT_EQ(config.placement.optimizer, (TierFractions{0.2, 0.3, 0.5}));
  EXPECT_EQ(config.nvme.directories, (std::vector<std::string>{"/mnt/a", "b \"ü\" \\"}));
  EXPECT_EQ(config.nvme.run, "run-1.b_C");
  EXPECT_TRUE(config.nvme.allow_tmpfs);
  EXPECT_EQ(config.nvme.weights, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(config.nvme.backend, Config::IoBackend::posix);
  EXPECT_EQ(config.nvme.queue_depth, 8U);
  EXPECT_EQ(config.nvme.write_depth, 3U);
  EXPECT_EQ(config.nvme.verify, Config::Verify::off);
  EXPECT_EQ(config.nvme.spare_slots, 2U);
  EXPECT_EQ(config.nvme.retry_s, 0.5);
  EXPECT_EQ(config.nvme.timeout_s, 30);
  EXPECT_EQ(config.precision.param, DType::fp32);
  EXPECT_EQ(config.precision.reduce, DType::bf16);
  EXPECT_TRUE(config.precision.wide_gradients);
  EXPECT_EQ(config.optimizer.name, "adamw");
  EXPECT_EQ(config.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.9);
  EXPECT_EQ(config.optimizer.epsilon, 1e-6);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.optimizer.clip_norm, 1.5);
  EXPECT_EQ(config.optimizer.nonfinite, Config::Nonfinite::abort);
  EXPECT_EQ(config.engine.max_live_units, 3U);
  EXPECT_EQ(config.engine.max_micro_batches, 16U);
  EXPECT_EQ(config.engine.tile, 512_KiB);
  EXPECT_EQ(config.engine.workers, 2U);
  EXPECT_EQ(config.communicator.timeout_s, 0.5);
  EXPECT_FALSE(config.communicator.shared_memory);
  EXPECT_EQ(config.communicator.window, 64_KiB);
  EXPECT_EQ(config.outside.device, 300_MiB);
  EXPECT_EQ(config.outside.host, 4096_B);
  EXPECT_EQ(parse(config.to_json()), config);
}

TEST(Config, ReduceFollowsParamUnlessNamed) {
  EXPECT_EQ(parse(R"({"precision": {"param": "fp32"}})").precision.reduce, DType::fp32);
  EXPECT_EQ(parse(R"({"precision": {"reduce": "fp32"}})").precision.param, DType::bf16);
  const Config mixed = parse(R"({"precision": {"reduce": "bf16", "param": "fp32"}})");
  EXPECT_EQ(mixed.precision.reduce, DType::bf16);
}

TEST(Config, AnAbsentTierOfFractionsIsZero) {
  const Config config = parse(R"({"placement": {"param": {"host": 1.0}}})");
  EXPECT_EQ(config.placement.param, (TierFractions{0, 1, 0}));
}

TEST(Config, UnknownKeysNameThePlaceAndTheNearestKey) {
  expect_messages({
      {"{\n  \"budgets\": {\n    \"devcie\": \"1GiB\"\n  }\n}",
       "strata.json:3:5: unknown key \"budgets.devcie\"; did you mean \"budgets.device\"?"},
      {R"({"budget": {}})", "strata.json:1:2: unknown key \"budget\"; did you mean \"budgets\"?"},
      {R"({"engine": {"tlie": 1}})",
       "strata.json:1:13: unknown key \"engine.tlie\"; did you mean \"engine.tile\"?"},
      {R"({"clip_norm": 1})",
       "strata.json:1:2: unknown key \"clip_norm\"; did you mean \"optimizer.clip_norm\"?"},
      {R"({"optimizer": {"learningRate": 1}})",
       "strata.json:1:16: unknown key \"optimizer.learningRate\"; did you mean "
       "\"optimizer.learning_rate\"?"},
      {R"({"placement": {"param": {"hots": 1}}})",
       "strata.json:1:26: unknown key \"placement.param.hots\"; did you mean "
       "\"placement.param.host\"?"},
      {R"({"placement": {"param": {"gpu": 1}}})",
       "strata.json:1:26: unknown key \"placement.param.gpu\"; the keys here are device, host, "
       "nvme"},
      {R"({"zero_optimization": {"stage": 3}})",
       "strata.json:1:2: unknown key \"zero_optimization\"; the keys here are budgets, device, "
       "placement, "
       "nvme, precision, optimizer, loss_scale, engine, communicator, outside"},
      {R"({"engine": {"thread_count": 3}})",
       "strata.json:1:13: unknown key \"engine.thread_count\"; the keys here are max_live_units, "
       "look_ahead, max_micro_batches, tile, workers"},
      {R"({"budgets.device": "1GiB"})",
       "strata.json:1:2: unknown key \"budgets.device\"; a name has no dots: write "
       "{\"section\": {\"name\": value}}"},
  });
  for (const char* foreign : {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                              "bf16", "fp16", "offload_param", "stage", "aio", ""}) {
    const std::string message = parse_error("{\"" + std::string(foreign) + "\": 1}");
    EXPECT_THAT(message, HasSubstr("the keys here are budgets")) << foreign;
  }
}

TEST(Config, PositionsCountLinesAndCharacters) {
  // The key stands behind two-byte characters, an escaped quote and a tab, each one column.
  expect_messages({
      {"{\"nvme\": {\"directories\": [\"ü/\\\"{,\"],\t\"rnu\": \"a\"}}",
       "strata.json:1:38: unknown key \"nvme.rnu\"; did you mean \"nvme.run\"?"},
      {"{\r\n\r\n \"a b\"\r\n:1}",
       "strata.json:3:2: unknown key \"a b\"; the keys here are budgets, device, placement, nvme, "
       "precision, optimizer, loss_scale, engine, communicator, outside"},
  });
  EXPECT_THAT(parse_error("\xEF\xBB\xBF{\"x\": 1}"), StartsWith("strata.json:1:2: "));
}

TEST(Config, WrongTypesSayWhatIsExpectedAndFound) {
  expect_messages({
      {R"({"nvme": {"allow_tmpfs": "true"}})",
       "strata.json:1:26: \"nvme.allow_tmpfs\" must be true or false; found \"true\""},
      {R"({"nvme": {"allow_tmpfs": 1}})",
       "strata.json:1:26: \"nvme.allow_tmpfs\" must be true or false; found 1"},
      {R"({"budgets": {"device": 1.5}})",
       "strata.json:1:24: \"budgets.device\" must be a size such as \"64MiB\" from 0 B to 1 PiB; "
       "found 1.5"},
      {R"({"budgets": {"device": "64M"}})",
       "strata.json:1:24: \"budgets.device\" must be a size such as \"64MiB\" from 0 B to 1 PiB; "
       "found \"64M\""},
      {R"({"budgets": {"device": -1}})",
       "strata.json:1:24: \"budgets.device\" must be a size such as \"64MiB\" from 0 B to 1 PiB; "
       "found -1"},
      {R"({"budgets": {"device": null}})",
       "strata.json:1:24: \"budgets.device\" must be a size such as \"64MiB\" from 0 B to 1 PiB; "
       "found null"},
      {R"({"budgets": {"device": 18446744073709551616}})",
       "strata.json:1:24: \"budgets.device\" must be a size such as \"64MiB\" from 0 B to 1 PiB; "
       "found 18446744073709551616"},
      {R"({"budgets": {"device": {}}})",
       "strata.json:1:24: \"budgets.device\" must be a size such as \"64MiB\" from 0 B to 1 PiB; "
       "found an object"},
      {R"({"budgets": ["1GiB"]})",
       "strata.json:1:13: \"budgets\" must be an object of the keys device, host, nvme, scope; "
       "found an array"},
      {R"({"budgets": 5})",
       "strata.json:1:13: \"budgets\" must be an object of the keys device, host, nvme, scope; "
       "found 5"},
      {R"({"budgets": {"scope": "node"}})",
       "strata.json:1:23: \"budgets.scope\" must be \"per_rank\" or \"per_node\"; found \"node\""},
      {R"({"precision": {"param": "int8"}})",
       "strata.json:1:25: \"precision.param\" must be \"bf16\", \"fp16\" or \"fp32\"; found "
       "\"int8\""},
      {R"({"nvme": {"directories": "/mnt"}})",
       "strata.json:1:26: \"nvme.directories\" must be an array of strings of different, "
       "non-empty paths without control characters; found \"/mnt\""},
      {R"({"nvme": {"directories": ["/mnt", 5]}})",
       "strata.json:1:35: \"nvme.directories\" must be an array of strings of different, "
       "non-empty paths without control characters; found 5"},
      {R"({"nvme": {"directories": [["/mnt"]]}})",
       "strata.json:1:27: \"nvme.directories\" must be an array of strings of different, "
       "non-empty paths without control characters; found an array"},
      {R"({"nvme": {"directories": [{}]}})",
       "strata.json:1:27: \"nvme.directories\" must be an array of strings of different, "
       "non-empty paths without control characters; found an object"},
      {R"({"engine": {"workers": 2.0}})",
       "strata.json:1:24: \"engine.workers\" must be a whole number from 0 to 256; found 2.0"},
      {R"({"engine": {"workers": 4294967297}})",
       "strata.json:1:24: \"engine.workers\" must be a whole number from 0 to 256; "
       "found 4294967297"},
      {R"({"optimizer": {"learning_rate": "3e-4"}})",
       "strata.json:1:33: \"optimizer.learning_rate\" must be a number of at least 0; "
       "found \"3e-4\""},
      {R"({"placement": {"param": "gpu"}})",
       "strata.json:1:25: \"placement.param\" must be \"device\", \"host\" or \"nvme\", or an "
       "object of fractions from 0 to 1 whose sum is 1 such as {\"host\": 0.25, \"nvme\": 0.75}; "
       "found \"gpu\""},
      {R"({"placement": {"param": {"host": "1"}}})",
       "strata.json:1:34: \"placement.param.host\" must be a number from 0 to 1; found \"1\""},
      {R"([1])",
       "strata.json:1:1: the file must be an object of the keys budgets, device, placement, nvme, "
       "precision, optimizer, loss_scale, engine, communicator, outside; found an array"},
      {R"("{}")",
       "strata.json:1:1: the file must be an object of the keys budgets, device, placement, nvme, "
       "precision, optimizer, loss_scale, engine, communicator, outside; found \"{}\""},
  });
}

TEST(Config, ValuesOutOfRangeAreRefused) {
  expect_messages({
      {"{\"engine\":\n{\"workers\": 257}}",
       "strata.json:2:13: \"engine.workers\" must be a whole number from 0 to 256; found 257"},
      {R"({"optimizer": {"beta1": 1}})",
       "strata.json:1:25: \"optimizer.beta1\" must be a number from 0 to 0.999999; found 1"},
      {R"({"optimizer": {"beta2": -0.1}})",
       "strata.json:1:25: \"optimizer.beta2\" must be a number from 0 to 0.999999; found -0.1"},
      {R"({"optimizer": {"epsilon": 0}})",
       "strata.json:1:27: \"optimizer.epsilon\" must be a number from 1e-30 to 1; found 0"},
      {R"({"communicator": {"timeout_s": 0}})",
       "strata.json:1:32: \"communicator.timeout_s\" must be a number above 0 and at most 86400; "
       "found 0"},
      {R"({"budgets": {"host": "2PiB"}})",
       "strata.json:1:22: \"budgets.host\" must be a size such as \"64MiB\" from 0 B to 1 PiB; "
       "found \"2PiB\""},
      {R"({"engine": {"tile": "3MiB"}})",
       "strata.json:1:21: \"engine.tile\" must be a size such as \"64MiB\" from 256 KiB to 1 GiB "
       "that is 256 KiB times a power of two; found \"3MiB\""},
      {R"({"optimizer": {"name": "adafactor"}})",
       "strata.json:1:24: \"optimizer.name\" must be a string that names an optimizer: "
       "\"adamw\", \"adam\", \"sgd\", \"adagrad\" or \"lion\"; found \"adafactor\""},
      {R"({"placement": {"grad": {"device": 0.5, "host": 0.4}}})",
       "strata.json:1:24: \"placement.grad\" must be \"device\", \"host\" or \"nvme\", or an "
       "object of fractions from 0 to 1 whose sum is 1 such as {\"host\": 0.25, \"nvme\": 0.75} "
       "(or \"auto\"); found {\"device\":0.5,\"host\":0.4,\"nvme\":0.0}"},
      {R"({"nvme": {"directories": ["/a", "/a"]}})",
       "strata.json:1:26: \"nvme.directories\" must be an array of strings of different, "
       "non-empty paths without control characters; found [\"/a\",\"/a\"]"},
  });
}

TEST(Config, TilesAre256KiBTimesAPowerOfTwo) {
  for (const char* good : {"256KiB", "512KiB", "1MiB", "4MiB", "1GiB"}) {
    EXPECT_NO_THROW(parse(R"({"engine": {"tile": ")" + std::string(good) + "\"}}")) << good;
  }
  for (const char* bad : {"0", "128KiB", "255KiB", "257KiB", "768KiB", "4MB", "2GiB"}) {
    EXPECT_THROW(parse(R"({"engine": {"tile": ")" + std::string(bad) + "\"}}"), Error) << bad;
  }
}

TEST(Config, RunNamesCannotLeaveTheDirectory) {
  for (const char* good : {"a", "gpt-tiny", "A.b_c-9", "...", ".hidden"}) {
    EXPECT_NO_THROW(parse(R"({"nvme": {"run": ")" + std::string(good) + "\"}}")) << good;
  }
  for (const char* bad : {"", ".", "..", "a/b", "../x", "a b", "a\\u0000", "ü", "a\\n"}) {
    EXPECT_THROW(parse(R"({"nvme": {"run": ")" + std::string(bad) + "\"}}"), Error) << bad;
  }
  EXPECT_NO_THROW(parse(R"({"nvme": {"run": ")" + std::string(128, 'r') + "\"}}"));
  EXPECT_THROW(parse(R"({"nvme": {"run": ")" + std::string(129, 'r') + "\"}}"), Error);
}

TEST(Config, FractionsMustBeFractionsOfOne) {
  const auto with_param = [](const std::string& fractions) {
    return R"({"budgets": {"nvme": "1GiB"}, "nvme": {"directories": ["."]}, "placement": )"
           R"({"param": )" +
           fractions + "}}";
  };
  for (const char* good :
       {R"({"device": 1})", R"({"device": 0.1, "host": 0.2, "nvme": 0.7})",
        R"({"device": 0.5, "host": 0.5000000005})", R"({"nvme": 1.0, "host": 0})"}) {
    EXPECT_NO_THROW(parse(with_param(good))) << good;
  }
  for (const char* bad :
       {"{}", R"({"device": 0})", R"({"device": 1.5, "host": -0.5})",
        R"({"device": 0.5, "host": 0.500000002})", R"({"device": 1, "host": 1})"}) {
    EXPECT_THAT(parse_error(with_param(bad)), HasSubstr("\"placement.param\" must be")) << bad;
  }
}

TEST(Config, RelationsBetweenKeysAreChecked) {
  expect_messages({
      {R"({"placement": {"param": "nvme"}, "nvme": {"directories": ["."]}})",
       "strata.json: \"budgets.nvme\" must be above 0 when a placement uses \"nvme\"; "
       "found \"0B\" by default"},
      {R"({"placement": {"grad": "nvme"}, "budgets": {"nvme": "1GiB"}})",
       "strata.json: \"nvme.directories\" must name a directory when a placement uses \"nvme\"; "
       "found [] by default"},
      {"{\"placement\": {\"optimizer\": {\"nvme\": 0.1, \"host\": 0.9}},\n"
       " \"budgets\": {\"nvme\": 0}, \"nvme\": {\"directories\": [\".\"]}}",
       "strata.json:2:22: \"budgets.nvme\" must be above 0 when a placement uses \"nvme\"; "
       "found 0"},
      {"{\"placement\": {\"optimizer\": \"nvme\"}, \"budgets\": {\"nvme\": \"1GiB\"},\n"
       " \"nvme\": {\"directories\": []}}",
       "strata.json:2:26: \"nvme.directories\" must name a directory when a placement uses "
       "\"nvme\"; found []"},
      {R"({"placement": {"param": "host"}, "budgets": {"host": 0}})",
       "strata.json:1:54: \"budgets.host\" must be above 0 when a placement uses \"host\"; "
       "found 0"},
      {R"({"budgets": {"device": 0}})",
       "strata.json:1:24: \"budgets.device\" must be above 0 when a placement uses \"device\"; "
       "found 0"},
      {R"({"outside": {"device": "2GiB"}})",
       "strata.json:1:24: \"outside.device\" must not be above \"budgets.device\"; "
       "found \"2GiB\""},
      {R"({"outside": {"host": "5GiB"}})",
       "strata.json:1:22: \"outside.host\" must not be above \"budgets.host\"; found \"5GiB\""},
  });
}

TEST(Config, RepeatedKeysAreRefused) {
  expect_messages({
      {"{\"budgets\": {\"host\": 1,\n\"host\": 1}}",
       "strata.json:2:1: duplicate key \"budgets.host\"; line 1 has it already"},
      {"{\"nvme\": {},\n\"\\u006evme\": {}}",
       "strata.json:2:1: duplicate key \"nvme\"; line 1 has it already"},
      {R"({"placement": {"param": {"host": 1, "host": 1}}})",
       "strata.json:1:37: duplicate key \"placement.param.host\"; line 1 has it already"},
  });
}

struct Broken {
  std::string_view text;
  std::string_view place;
  std::string_view found;
};

TEST(Config, SyntaxErrorsNameThePlace) {
  constexpr Broken kCases[] = {
      {"{", "1:2", "the end"},
      {"{\n\"budgets\": {\n", "3:1", "the end"},
      {"{} x", "1:4", "x"},
      {"{}\n{}", "2:1", "{"},
      {"{\"budgets\": {},\n}", "2:1", "}"},
      {"{\"budgets\" {}}", "1:12", "{"},
      {"{\"budgets\": }", "1:13", "}"},
      {"{\"budgets\": ,}", "1:13", ","},
      {"{\"budgets\": {\"device\": 1 2}}", "1:26", "2"},
      {"{\"budgets\": {\"device\": 01}}", "1:24", "01"},
      {"{\"budgets\": {\"device\": 1e}}", "1:24", "1e"},
      {"{\"budgets\": {\"device\": +1}}", "1:24", "+1"},
      {"{\"budgets\": {\"device\": tru}}", "1:24", "tru"},
      {"{\"budgets\": {\"device\": NaN}}", "1:24", "NaN"},
      {"{\"budgets\": {\"device\": 'a'}}", "1:24", "'a'"},
      {"{budgets: {}}", "1:2", "budgets"},
      {"{\n  // comment\n}", "2:3", "//"},
      {"{\"budgets\": {\"device\": \"1GiB}}", "1:24", "\"1GiB}}"},
      {"{\"budgets\": {\"device\": \"a\\x\"}}", "1:24", "\"a\\x\""},
      {"{\"budgets\": {\"device\": \"a\nb\"}}", "1:24", "\"a?b\""},
      {"{\"optimizer\": {\"beta1\": 1e400}}", "1:25", "1e400"},
      {"]", "1:1", "]"},
  };
  for (const Broken& one : kCases) {
    const std::string message = parse_error(one.text);
    EXPECT_THAT(message, StartsWith("strata.json:" + std::string(one.place) + ": not JSON: "))
        << one.text;
    EXPECT_THAT(message, EndsWith("; found " + std::string(one.found))) << one.text;
    EXPECT_THAT(message, Not(HasSubstr("json.exception"))) << one.text;
  }
  EXPECT_EQ(parse_error("{\"budgets\": {},\n}"),
            "strata.json:2:1: not JSON: while parsing object key: unexpected '}'; expected string "
            "literal; found }");
}

TEST(Config, EmptyAndBinaryTextIsRefused) {
  for (const char* empty : {"", " ", "\n\n\t", "\xEF\xBB\xBF", "\xEF\xBB\xBF \n"}) {
    EXPECT_EQ(parse_error(empty),
              "strata.json:1:1: the file is empty; expected an object, {} takes every default");
  }
  EXPECT_THAT(parse_error(std::string_view("{}\n\0{", 5)), StartsWith("strata.json:2:1: a NUL"));
  EXPECT_THAT(parse_error("{\"\xFF\": 1}"), StartsWith("strata.json:1:2: not JSON"));
}

TEST(Config, DeepNestingIsNoDanger) {
  EXPECT_THAT(parse_error(std::string(1'000'000, '[')), StartsWith("strata.json:1:1: the file"));
}

TEST(Config, MessagesStayOneShortLine) {
  const std::string long_name(5000, 'x');
  const std::string message = parse_error("{\"" + long_name + "\": 1}");
  EXPECT_LT(message.size(), 300U);
  EXPECT_THAT(parse_error("{\"a\\nb\\u007f\": 1}"), HasSubstr("unknown key \"a?b?\""));
  const auto odd_source = [] { Config::from_json("{", "a\nb"); };
  EXPECT_THAT(error_of(odd_source), StartsWith("a?b:1:2: "));
}

TEST(Config, DefaultsAreValidAndRoundTrip) {
  EXPECT_NO_THROW(Config{}.validate());
  EXPECT_EQ(parse(Config{}.to_json()), Config{});
}

TEST(Config, ToJsonNamesEveryKeyWithReadableSizes) {
  const auto file = nlohmann::json::parse(Config{}.to_json());
  for (const config::Key& key : config::keys()) {
    std::string pointer = "/" + std::string(key.path);
    pointer.replace(pointer.find('.'), 1, "/");
    EXPECT_TRUE(file.contains(nlohmann::json::json_pointer(pointer))) << key.path;
  }
  EXPECT_EQ(file["budgets"]["device"], "1GiB");
  EXPECT_EQ(file["engine"]["tile"], "4MiB");
  EXPECT_EQ(file["placement"]["param"], "device");
  EXPECT_EQ(file["optimizer"]["nonfinite"], "skip");
}

TEST(Config, ToJsonRefusesWhatJsonCannotHold) {
  Config config;
  config.nvme.directories = {"/mnt/\xFF"};
  EXPECT_THAT(error_of([&] { (void)config.to_json(); }), HasSubstr("not UTF-8"));
}

TEST(Config, OnlyGradientsMayRestWhereTheBudgetsSay) {
  const Config config = Config::from_json(R"({"placement": {"grad": "auto"}})", "strata.json");
  EXPECT_TRUE(config.placement.grad.automatic);
  EXPECT_EQ(Config::from_json(config.to_json(), "again"), config);
  for (const char* kind : {"param", "optimizer"}) {
    EXPECT_THAT(error_of([&] {
                  Config::from_json(fmt::format(R"({{"placement": {{"{}": "auto"}}}})", kind),
                                    "strata.json");
                }),
                HasSubstr("only \"placement.grad\" may be \"auto\""));
  }
}

TEST(Config, ValidateFindsWhatCodeSetWrong) {
  Config config;
  config.optimizer.learning_rate = std::nan("");
  EXPECT_EQ(
      error_of([&] { config.validate(); }),
      "configuration: \"optimizer.learning_rate\" must be a number of at least 0; found null");
  config = {};
  config.optimizer.clip_norm = std::numeric_limits<double>::infinity();
  EXPECT_THAT(error_of([&] { config.validate(); }), HasSubstr("\"optimizer.clip_norm\""));
  config = {};
  config.precision.reduce = static_cast<DType>(77);
  EXPECT_THAT(error_of([&] { config.validate(); }),
              HasSubstr("\"precision.reduce\" must be \"bf16\", \"fp16\" or \"fp32\""));
  config = {};
  config.precision.moments = DType::fp16;
  EXPECT_THAT(error_of([&] { config.validate(); }),
              HasSubstr("\"precision.moments\" must be \"fp32\" or \"bf16\""));
  config = {};
  config.optimizer.momentum = 0.9;
  EXPECT_THAT(error_of([&] { config.validate(); }), HasSubstr("\"optimizer.momentum\" must be 0"));
  config.optimizer.name = "sgd";
  config.optimizer.nesterov = true;
  EXPECT_EQ(error_of([&] { config.validate(); }), "no error");
  config.optimizer.momentum = 0;
  EXPECT_THAT(error_of([&] { config.validate(); }), HasSubstr("\"optimizer.nesterov\""));
  config = {};
  config.nvme.directories = {"/a\nb"};
  EXPECT_THAT(error_of([&] { config.validate(); }), HasSubstr("\"nvme.directories\""));
  config = {};
  config.placement.param = {0, 0, 1};
  EXPECT_THAT(error_of([&] { config.validate(); }),
              StartsWith("configuration: \"budgets.nvme\" must be above 0"));
}

// Every key is reached by its own row: changing one member changes one key of the file only.
TEST(ConfigKeys, EachRowOwnsOneMember) {
  for (const config::Key& key : config::keys()) {
    Config changed;
    std::visit([]<class T>(T* member) { *member = T{}; }, key.field(changed));
    std::visit(
        []<class T>(T* member) {
          if constexpr (std::is_arithmetic_v<T>) *member = static_cast<T>(!*member);
          if constexpr (std::is_enum_v<T>) *member = static_cast<T>(1 - static_cast<int>(*member));
        },
        key.field(changed));
    for (const config::Key& other : config::keys()) {
      if (other.path == key.path) continue;
      Config defaults;
      const bool same = std::visit(
          [&]<class T>(T* member) { return *member == *std::get<T*>(other.field(defaults)); },
          other.field(changed));
      EXPECT_TRUE(same) << key.path << " changes " << other.path;
    }
  }
}

TEST(ConfigKeys, EveryKeyHasASectionARangeAndASentence) {
  for (const config::Key& key : config::keys()) {
    EXPECT_TRUE(config::is_section(key.path.substr(0, key.path.find('.')))) << key.path;
    EXPECT_TRUE(key.doc.ends_with('.')) << key.path;
    EXPECT_TRUE(config::is_valid(key, Config{})) << key.path;
    EXPECT_EQ(config::find_key(key.path), &key) << "two rows for " << key.path;
  }
  for (const config::Relation& relation : config::relations()) {
    EXPECT_NE(config::find_key(relation.path), nullptr) << relation.path;
  }
}

TEST(ConfigSuggest, DistanceCountsEdits) {
  EXPECT_EQ(config::edit_distance("", ""), 0U);
  EXPECT_EQ(config::edit_distance("abc", ""), 3U);
  EXPECT_EQ(config::edit_distance("", "abc"), 3U);
  EXPECT_EQ(config::edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(config::edit_distance("devcie", "device"), 1U);
  EXPECT_EQ(config::edit_distance("ca", "abc"), 3U);  // 2 for the unrestricted distance
}

TEST(ConfigSuggest, EveryMisspeltPathFindsItsWayBack) {
  for (const std::string& path : config::valid_paths()) {
    const std::size_t leaf = path.rfind('.') + 1;
    std::string doubled = path;
    doubled.insert(leaf, 1, path[leaf]);
    EXPECT_EQ(config::nearest_path(doubled), path) << doubled;
  }
}

class ConfigFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "config_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name, std::ios::binary) << text;
    return directory_ / name;
  }

  std::filesystem::path directory_;
};

TEST_F(ConfigFile, IsReadAndItsPathNamedInErrors) {
  Config config;
  config.engine.workers = 3;
  EXPECT_EQ(Config::from_file(write("good.json", config.to_json())), config);
  const std::string bad = write("bad.json", "{\n \"x\": 1}");
  const std::string message = error_of([&] { Config::from_file(bad); });
  EXPECT_THAT(message, HasSubstr("bad.json:2:2: unknown key \"x\""));
}

TEST_F(ConfigFile, ThatCannotBeReadIsNamedWithTheReason) {
  const auto load = [](const std::string& path) {
    return error_of([&] { Config::from_file(path); });
  };
  EXPECT_EQ(load("/nonexistent/strata.json"),
            "cannot open the configuration; give the path of a readable JSON file: No such file "
            "or directory (path /nonexistent/strata.json)");
  EXPECT_EQ(load("/"),
            "cannot read the configuration; give the path of a readable JSON file: Is a directory "
            "(path /)");
  EXPECT_THAT(load(""), HasSubstr("cannot open"));
  EXPECT_THAT(load("a\nb"), HasSubstr("(path a?b)"));
  EXPECT_THAT(load(write("empty.json", "")), HasSubstr("empty.json:1:1: the file is empty"));
  EXPECT_THAT(load(write("large.json", std::string(2 << 20, ' '))), HasSubstr("1 MiB"));
}

TEST_F(ConfigFile, ThatIsForbiddenIsNamedWithTheReason) {
  const std::string secret = write("secret.json", "{}");
  ASSERT_EQ(::chmod(secret.c_str(), 0), 0);
  if (::access(secret.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read everything";
  EXPECT_THAT(error_of([&] { Config::from_file(secret); }), HasSubstr("Permission denied"));
}

TEST(ConfigExamples, AreValidAndMeanWhatTheirNamesSay) {
  const std::string directory = STRATA_EXAMPLES_DIR "/train_gpt/configs/";
  const auto load = [&](const char* name) { return Config::from_file(directory + name); };
  constexpr TierFractions kDevice{1, 0, 0}, kHost{0, 1, 0}, kNvme{0, 0, 1};
  const Config device = load("device.json");
  EXPECT_EQ(device.placement, (Config::Placement{kDevice, kDevice, kDevice}));
  EXPECT_EQ(load("host.json").placement, (Config::Placement{kHost, kHost, kHost}));
  EXPECT_EQ(load("nvme.json").placement, (Config::Placement{kNvme, kHost, kNvme}));
  const Config mixed = load("mixed.json");
  for (const auto* kind :
       {&mixed.placement.param, &mixed.placement.grad, &mixed.placement.optimizer}) {
    EXPECT_LT(std::max({kind->device, kind->host, kind->nvme}), 1.0);
  }
}

}  // namespace
}  // namespace strata
