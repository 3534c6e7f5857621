// `strata bench io`: its statistics, chart and plan, what it reports of a scratch directory, what
// it refuses, and that it leaves nothing behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bar_chart.hpp"
#include "bare_loop.hpp"
#include "base/rng.hpp"
#include "bench_io_plan.hpp"
#include "bench_io_results.hpp"
#include "output_file.hpp"
#include "statistics.hpp"
#include "strata/bytes.hpp"
#include "strata/error.hpp"
#include "support/loop_file_system.hpp"
#include "support/run_tool.hpp"
#include "tool.hpp"

namespace strata::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(Statistics, PercentilesInterpolateBetweenRanks) {
  const std::vector<double> values{4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(tool::percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(tool::percentile(values, 1), 4);
  EXPECT_DOUBLE_EQ(tool::median(values), 2.5);
  EXPECT_DOUBLE_EQ(tool::percentile(values, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(tool::median(std::vector<double>{7}), 7);
  std::vector<double> line;
  for (int i = 100; i >= 0; --i) line.push_back(i);
  EXPECT_DOUBLE_EQ(tool::percentile(line, 0.99), 99);
  EXPECT_DOUBLE_EQ(tool::percentile(line, 0.995), 99.5);
}

TEST(Statistics, APureFactorHasAnIntervalWithoutWidth) {
  std::vector<double> a;
  std::vector<double> b;
  for (std::uint64_t i = 0; i < 50; ++i) {
    b.push_back(1 + rng::uniform(1, i));
    a.push_back(2 * b.back());
  }
  const tool::Interval interval = tool::ratio_interval(a, b, 1);
  EXPECT_DOUBLE_EQ(interval.low, 2);
  EXPECT_DOUBLE_EQ(interval.high, 2);
}

// For values of a normal distribution the median of n has the deviation sqrt(pi / 2 / n) sigma
// (Kendall and Stuart, The Advanced Theory of Statistics, vol. 1); b is constant.
TEST(Statistics, TheIntervalIsAsWideAsTheMedianIsUncertain) {
  constexpr int kCount = 400;
  constexpr double kSigma = 0.1;
  std::vector<double> a;
  const std::vector<double> b(kCount, 1.0);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double radius = std::sqrt(-2 * std::log(1 - rng::uniform(2, i)));
    a.push_back(1 + kSigma * radius * std::cos(2 * M_PI * rng::uniform(3, i)));
  }
  const double half = 1.96 * kSigma * std::sqrt(M_PI / 2 / kCount);
  const tool::Interval interval = tool::ratio_interval(a, b, 1);
  EXPECT_LT(interval.low, tool::median(a));
  EXPECT_GT(interval.high, tool::median(a));
  EXPECT_NEAR(interval.high - interval.low, 2 * half, half);
  const tool::Interval again = tool::ratio_interval(a, b, 1);
  EXPECT_EQ(again.low, interval.low);
  EXPECT_EQ(again.high, interval.high);
}

TEST(BarChart, DrawsToAnEighthOfAColumn) {
  const std::vector<tool::Bar> bars{{"read", 2}, {"  bare", 1}, {"w", 0.25}, {"none", 0}};
  EXPECT_EQ(tool::draw_bars(bars, "GB/s", 2, 23),
            "read   ██████ 2.00 GB/s\n"
            "  bare ███    1.00 GB/s\n"
            "w      ▊      0.25 GB/s\n"
            "none          0.00 GB/s\n");
}

TEST(BarChart, NothingToDrawIsNoDivisionByZero) {
  const std::vector<tool::Bar> bars{{"a", 0}};
  EXPECT_EQ(tool::draw_bars(bars, "x", 0, 8), "a    0 x\n");
  EXPECT_EQ(tool::draw_bars(bars, "x", 0, 1), "a   0 x\n");
  EXPECT_EQ(tool::draw_bars({}, "x", 0, 80), "");
}

TEST(Results, WeightsAreAsFastAsTheDirectories) {
  tool::BenchIoResults results;
  EXPECT_THAT(tool::weights_of(results), IsEmpty());
  const auto add = [&](double seconds) {
    tool::ReadsAndWrites rates;
    rates.read.add(1_GiB, seconds, 0.5);
    rates.write.add(1_GiB, seconds, 1.5);
    results.directories.push_back(rates);
  };
  add(2);
  add(1);
  add(1000);
  EXPECT_THAT(tool::weights_of(results), ElementsAre(0.5, 1, 0.01));
  EXPECT_DOUBLE_EQ(results.directories[0].cpu_s_per_gib(), 1);
  EXPECT_DOUBLE_EQ(results.directories[0].combined_rate(), 512.0 * 1024 * 1024);
}

TEST(Plan, TheDefaultIsOneGibibyteAndAHundredWindows) {
  const tool::BenchIoPlan plan = tool::make_bench_io_plan({.directories = {"d"}});
  EXPECT_EQ(plan.window, 64_MiB);
  EXPECT_EQ(plan.main_rounds, 100U);
  EXPECT_EQ(plan.many.count, 256U);
  EXPECT_EQ(plan.many.tile, 2_MiB);
  EXPECT_LE(plan.file_bytes(), 1_GiB);
  EXPECT_GT(plan.file_bytes(), 1_GiB - 32_MiB);
  // 16 MiB eight times is more than a window.
  EXPECT_EQ(plan.sweep.size(), 7U);
  EXPECT_EQ(plan.most_depth, 16U);
}

TEST(Plan, EachDirectoryHoldsAWindowOfEachTile) {
  for (std::uint32_t directories = 1; directories <= 9; ++directories) {
    tool::BenchIoOptions options;
    for (std::uint32_t i = 0; i < directories; ++i)
      options.directories.push_back(std::to_string(i));
    const tool::BenchIoPlan plan = tool::make_bench_io_plan(options);
    for (const tool::TileSet& set : plan.sets) {
      EXPECT_GE(set.count / directories, plan.tiles_of(set.tile));
    }
    EXPECT_GE(plan.many.count, plan.tiles_of(plan.many.tile));
  }
}

TEST(Plan, BytesAreMet) {
  for (const Bytes bytes : {256_MiB, 300_MiB, 1_GiB, 10_GiB}) {
    const tool::BenchIoPlan plan =
        tool::make_bench_io_plan({.directories = {"d"}, .bytes = bytes, .tiles = {1_MiB, 4_MiB}});
    EXPECT_LE(plan.file_bytes(), bytes);
    EXPECT_GT(plan.file_bytes(), bytes - 16_MiB);
  }
}

ToolOutcome bench_io(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "io"});
  return run_tool(std::move(arguments));
}

// Bytes that this process has sent towards disks: proc(5), /proc/pid/io.
std::uint64_t written_by_this_process() {
  std::ifstream file("/proc/self/io");
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "write_bytes:") return value;
  }
  return 0;
}

class BenchIo : public ::testing::Test {
 protected:
  BenchIo() {
    for (const char* name : {"a", "b"}) std::filesystem::create_directory(path(name));
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  // --allow-tmpfs: a scratch directory may well be one.
  ToolOutcome quick(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--quick", "--allow-tmpfs"});
    return bench_io(arguments);
  }
  std::vector<std::string> left_in(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path(name))) {
      names.push_back(entry.path().string());
    }
    return names;
  }
  nlohmann::json read_json(const std::string& name) const {
    std::ifstream file(path(name));
    return nlohmann::json::parse(file);
  }

 private:
  ScratchDirectory folder_;
};

void expect_positive(const nlohmann::json& json, const std::string& pointer) {
  const nlohmann::json& value = json.at(nlohmann::json::json_pointer(pointer));
  ASSERT_TRUE(value.is_number()) << pointer << ": " << value;
  EXPECT_GT(value.get<double>(), 0) << pointer;
}

// A sequence of UTF-8 bytes as columns.
std::size_t columns_of(const std::string& line) {
  return static_cast<std::size_t>(
      std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST_F(BenchIo, ReportsWhatItMeasured) {
  const std::uint64_t before = written_by_this_process();
  const ToolOutcome outcome = quick({"--dir", path("a"), "--json", path("r.json")});
  const std::uint64_t written = written_by_this_process() - before;
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(left_in("a"), IsEmpty());

  const nlohmann::json json = read_json("r.json");
  for (const char* pointer :
       {"/sequential/read_bytes_per_s", "/sequential/write_bytes_per_s", "/sequential/tile_bytes",
        "/sequential/queue_depth", "/many_tensors/read_bytes_per_s",
        "/sequential/verified/read_bytes_per_s", "/sequential/verified/write_bytes_per_s",
        "/many_tensors/write_bytes_per_s", "/cpu_s_per_gib/checksum_off",
        "/cpu_s_per_gib/checksum_on", "/page_bytes", "/mix/bytes_per_s", "/latency_s/read/p50",
        "/latency_s/read/p99", "/latency_s/write/p50", "/latency_s/write/p99"}) {
    expect_positive(json, pointer);
  }
  EXPECT_TRUE(json["registered"].is_boolean());
  EXPECT_LE(json["latency_s"]["read"]["p50"], json["latency_s"]["read"]["p99"]);
  EXPECT_EQ(json["sweep"].size(), 4U) << "1 MiB at three depths, 4 MiB at one";
  EXPECT_THAT(json["directories"], IsEmpty());
  if (json["bare_loop"].contains("missing")) {
    EXPECT_TRUE(json["sequential"]["read_vs_bare"].is_null());
    EXPECT_THAT(outcome.out, HasSubstr("No bare loop to compare with: "));
  } else {
    for (const char* ratio : {"read_vs_bare", "write_vs_bare"}) {
      const nlohmann::json& sequential = json["sequential"];
      expect_positive(sequential, std::string("/") + ratio);
      expect_positive(sequential, std::string("/verified/") + ratio);
      EXPECT_LE(sequential[std::string(ratio) + "_95"][0], sequential[ratio]);
      EXPECT_GE(sequential[std::string(ratio) + "_95"][1], sequential[ratio]);
    }
    expect_positive(json, "/cpu_s_per_gib/bare");
    EXPECT_EQ(json["written_bytes"], json["announced_write_bytes"]);
  }

  const auto announced = json["announced_write_bytes"].get<std::uint64_t>();
  EXPECT_LE(written, announced + (1 << 20));
  EXPECT_LE(json["written_bytes"].get<std::uint64_t>(), announced);
  EXPECT_THAT(outcome.out,
              StartsWith("Writes " + format_bytes(Bytes{announced}) + ", to files of "));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(outcome.out, HasSubstr("█"));
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = outcome.out.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string line = outcome.out.substr(begin, end - begin);
    const bool names_directory = line.find(path("")) != std::string::npos;
    EXPECT_TRUE(names_directory || columns_of(line) <= 80) << line;
  }
}

TEST_F(BenchIo, SeveralDirectoriesGetWeights) {
  const ToolOutcome outcome =
      quick({"--dir", path("a"), "--dir", path("b"), "--tile", "1MiB", "--depth", "4", "--json",
             path("r.json"), "--backend", "posix"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json json = read_json("r.json");
  ASSERT_EQ(json["weights"].size(), 2U);
  EXPECT_EQ(*std::ranges::max_element(json["weights"]), 1);
  EXPECT_EQ(json["directories"][1]["path"], path("b"));
  EXPECT_EQ(json["backend"], "posix");
  EXPECT_EQ(json["registered"], false);
  EXPECT_EQ(json["sequential"]["tile_bytes"], 1 << 20);
  EXPECT_EQ(json["sequential"]["queue_depth"], 4);
  EXPECT_THAT(json["sweep"], IsEmpty()) << "a single choice needs no sweep";
  EXPECT_THAT(outcome.out, HasSubstr("\"weights\": ["));
  EXPECT_THAT(left_in("a"), IsEmpty());
  EXPECT_THAT(left_in("b"), IsEmpty());
}

TEST_F(BenchIo, WrongUseIsOneLineAndLeavesNothing) {
  const std::string a = path("a");
  std::ofstream(path("file")) << "x";
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"--dir", path("missing")},
      {"--dir", path("file")},
      {"--dir", ""},
      {"--dir", a, "--dir", a},
      {"--dir", a, "--depth", "0"},
      {"--dir", a, "--depth", "257"},
      {"--dir", a, "--depth", "many"},
      {"--dir", a, "--tile", "3MiB"},
      {"--dir", a, "--tile", "128KiB"},
      {"--dir", a, "--tile", "0"},
      {"--dir", a, "--tile", "big"},
      {"--dir", a, "--tile", "128MiB"},
      {"--dir", a, "--tile", "16MiB", "--depth", "16"},
      {"--dir", a, "--windows", "0"},
      {"--dir", a, "--backend", "aio"},
      {"--dir", a, "--bytes", "16MiB"},
      {"--dir", a, "--bytes", "1EiB"},
      {"--dir", a, "--json", path("no/such.json")},
      {"--dir", a, "--json", path("b")}};
  for (const auto& arguments : wrong) {
    std::string line;
    for (const std::string& argument : arguments) line += argument + " ";
    SCOPED_TRACE(line);
    const ToolOutcome outcome = quick(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("strata: "));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_THAT(left_in("a"), IsEmpty());
  }
}

TEST_F(BenchIo, AFailedRunLeavesNoResultFile) {
  std::ofstream(path("old.json")) << "old";
  const ToolOutcome fresh = quick({"--dir", path("missing"), "--json", path("new.json")});
  EXPECT_THAT(fresh.err, HasSubstr("does not exist"));
  EXPECT_FALSE(std::filesystem::exists(path("new.json")));
  quick({"--dir", path("missing"), "--json", path("old.json")});
  std::ifstream file(path("old.json"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "old");
}

TEST_F(BenchIo, MemoryFileSystemsAreRefusedUnlessAllowed) {
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "/dev/shm is not writable";
  const ScratchDirectory memory("/dev/shm");
  const ToolOutcome refused = bench_io({"--dir", memory.path(), "--quick"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--allow-tmpfs"));
  EXPECT_TRUE(std::filesystem::is_empty(memory.path()));
  const ToolOutcome allowed = bench_io({"--dir", memory.path(), "--quick", "--allow-tmpfs",
                                        "--tile", "1MiB", "--depth", "4", "--windows", "1"});
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_TRUE(std::filesystem::is_empty(memory.path()));
}

TEST_F(BenchIo, FilesBeyondALimitAreRefused) {
  rlimit former{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &former), 0);
  const rlimit low{.rlim_cur = 1 << 20, .rlim_max = former.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const ToolOutcome outcome = quick({"--dir", path("a")});
  ::setrlimit(RLIMIT_FSIZE, &former);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("file size limit"));
  EXPECT_THAT(left_in("a"), IsEmpty());
}

TEST_F(BenchIo, AReadOnlyDirectoryIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  ::chmod(path("a").c_str(), 0500);
  const ToolOutcome outcome = quick({"--dir", path("a")});
  ::chmod(path("a").c_str(), 0700);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("not writable"));
}

TEST_F(BenchIo, ASignalEndsItAndLeavesNothing) {
  std::thread user([this] {
    while (left_in("a").size() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(::getpid(), SIGINT);
  });
  const ToolOutcome outcome =
      quick({"--dir", path("a"), "--windows", "1000000", "--json", path("r.json")});
  user.join();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.err, "strata: interrupted; nothing was left behind\n");
  EXPECT_THAT(left_in("a"), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(path("r.json")));
}

TEST_F(BenchIo, AClosedOutputEndsItAndLeavesNothing) {
  std::FILE* full = std::fopen("/dev/full", "w");
  if (full == nullptr) GTEST_SKIP() << "no /dev/full";
  const std::string directory = path("a");
  const std::vector<const char*> arguments{"strata",          "bench",   "io",           "--dir",
                                           directory.c_str(), "--quick", "--allow-tmpfs"};
  EXPECT_EQ(tool::run(static_cast<int>(arguments.size()), arguments.data(), full, stderr), 2);
  std::fclose(full);
  EXPECT_THAT(left_in("a"), IsEmpty());
}

// What the loop moves is what stands in the files, and what fails is told once nothing is in
// flight.
TEST_F(BenchIo, TheBareLoopMovesTilesAndChecksResults) {
  constexpr std::size_t kTile = 256 << 10;
  const std::string file = path("data");
  {
    std::ofstream stream(file, std::ios::binary);
    for (char tile = 0; tile < 8; ++tile)
      stream << std::string(kTile, static_cast<char>('a' + tile));
  }
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(4096, 4 * kTile),
                                                      &std::free);
  const std::span<std::byte> bytes(static_cast<std::byte*>(memory.get()), 4 * kTile);
  std::unique_ptr<tool::BareLoop> loop;
  try {
    loop = tool::make_bare_loop({.paths = {file}, .memory = bytes, .depth = 4});
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::not_supported);
    GTEST_SKIP() << error.what();
  }
  const std::vector<tool::BareTransfer> last{{0, 7 * kTile, false}};
  loop->run(last, Bytes{kTile}, 1);
  EXPECT_EQ(std::to_integer<char>(bytes.front()), 'h');
  EXPECT_EQ(std::to_integer<char>(bytes[kTile - 1]), 'h');
  // One tile of memory, so that the last one read stays.
  std::vector<tool::BareTransfer> writes;
  for (std::uint64_t tile = 0; tile < 7; ++tile) writes.push_back({0, tile * kTile, true});
  loop->run(writes, Bytes{kTile}, 1);
  std::ifstream stream(file, std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(stream), {});
  EXPECT_EQ(content, std::string(8 * kTile, 'h'));
  const std::vector<tool::BareTransfer> beyond{
      {0, 0, false}, {0, 8 * kTile, false}, {0, kTile, false}};
  try {
    loop->run(beyond, Bytes{kTile}, 2);
    FAIL() << "a short read passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.context().offset_bytes, 8 * kTile);
  }
  loop->run(last, Bytes{kTile}, 1);
  EXPECT_THROW(tool::make_bare_loop({.paths = {path("missing")}, .memory = bytes}), Error);
}

TEST_F(BenchIo, OutputFilesReplaceTheContentAtTheEndOnly) {
  std::ofstream(path("f")) << "a long old content";
  {
    tool::OutputFile file(path("f"));
    EXPECT_EQ(std::filesystem::file_size(path("f")), 18U);
    file.write("new");
  }
  EXPECT_EQ(std::filesystem::file_size(path("f")), 3U);
  { const tool::OutputFile unused(path("g")); }
  EXPECT_FALSE(std::filesystem::exists(path("g")));
  EXPECT_THROW(tool::OutputFile(path("no/h")), Error);
}

}  // namespace
}  // namespace strata::test
