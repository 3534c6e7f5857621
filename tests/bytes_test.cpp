#include "strata/bytes.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "base/rng.hpp"

namespace strata {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

struct Parsed {
  std::string_view text;
  std::uint64_t bytes;
};

TEST(ParseBytes, ReadsNumbersWithUnits) {
  constexpr Parsed kCases[] = {
      {"0", 0},
      {"0B", 0},
      {"4096", 4096},
      {"4096B", 4096},
      {"007", 7},
      {"512KiB", 524288},
      {"64MiB", 67108864},
      {"64 MiB", 67108864},
      {"1.5GiB", 1610612736},
      {"1.50 GiB", 1610612736},
      {"0.5KiB", 512},
      {"3TiB", 3298534883328},
      {"2PiB", 2251799813685248},
      {"15EiB", 17293822569102704640ULL},
      {"1KB", 1000},
      {"2.5MB", 2500000},
      {"2GB", 2000000000},
      {"1TB", 1000000000000},
      {"1PB", 1000000000000000},
      {"18EB", 18000000000000000000ULL},
      {"1.21GiB", 1299227607},             // 1299227607.04
      {"0.3333333333333333333KiB", 341},   // 341.33
      {"0.9999999999999999999KiB", 1023},  // below 1024 by less than a double can tell
      {"18014398509481983.9990234375KiB", kMost},
      {"9999999999999999999", 9999999999999999999ULL},
  };
  for (const Parsed& one : kCases) {
    const auto size = parse_bytes(one.text);
    ASSERT_TRUE(size.has_value()) << one.text;
    EXPECT_EQ(size->value, one.bytes) << one.text;
  }
}

TEST(ParseBytes, RefusesEverythingElse) {
  constexpr std::string_view kCases[] = {
      "",
      " ",
      "B",
      "KiB",
      "MiB 64",
      "-1",
      "-64MiB",
      "+1",
      "1e6",
      "1.",
      ".5GiB",
      "1.GiB",
      "1..5GiB",
      "1.5",
      "0.5B",
      "64M",
      "64mib",
      "64Mib",
      "64MIB",
      "64kB",
      "64  MiB",
      "64 MiB ",
      " 64MiB",
      "64MiBs",
      "64\tMB",
      "0x10",
      "1,000",
      "1_000",
      "64 ",
      "inf",
      "nan",
      "1/2GiB",
      "16EiB",
      "19EB",
      "99999999999999999999",
      "20000000000000000000",
      "18446744073709551616",
      "18014398509481984KiB",
      "0.00000000000000000000KiB",
      std::string_view("1\0", 2),
      std::string_view("1KiB\0", 5),
      "\xD9\xA1MiB",
  };
  for (const std::string_view text : kCases) {
    EXPECT_FALSE(parse_bytes(text).has_value()) << "'" << text << "'";
  }
}

TEST(FormatBytes, ChoosesTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(0_B), "0 B");
  EXPECT_EQ(format_bytes(1_B), "1 B");
  EXPECT_EQ(format_bytes(1023_B), "1023 B");
  EXPECT_EQ(format_bytes(1_KiB), "1 KiB");
  EXPECT_EQ(format_bytes(1025_B), "1 KiB");
  EXPECT_EQ(format_bytes(1100_B), "1.07 KiB");
  EXPECT_EQ(format_bytes(1536_B), "1.5 KiB");
  EXPECT_EQ(format_bytes(64_MiB), "64 MiB");
  EXPECT_EQ(format_bytes(100_MiB), "100 MiB");
  EXPECT_EQ(format_bytes(Bytes{1299227607}), "1.21 GiB");
  EXPECT_EQ(format_bytes(1023_GiB), "1023 GiB");
  EXPECT_EQ(format_bytes(1024_GiB), "1 TiB");
  EXPECT_EQ(format_bytes(Bytes{kMost}), "16 EiB");
}

TEST(FormatBytes, NeverRoundsTo1024OfAUnit) {
  EXPECT_EQ(format_bytes(Bytes{1048570}), "1023.99 KiB");
  EXPECT_EQ(format_bytes(Bytes{1048571}), "1 MiB");
  EXPECT_EQ(format_bytes(Bytes{1048575}), "1 MiB");
  EXPECT_EQ(format_bytes(Bytes{1043333}), "1018.88 KiB");
  EXPECT_EQ(format_bytes(Bytes{(1ULL << 30) - 1}), "1 GiB");
}

TEST(FormatBytes, ExactTextReadsBackToTheSameNumber) {
  EXPECT_EQ(format_bytes_exact(0_B), "0B");
  EXPECT_EQ(format_bytes_exact(1536_MiB), "1536MiB");
  EXPECT_EQ(format_bytes_exact(2_GiB), "2GiB");
  EXPECT_EQ(format_bytes_exact(4097_B), "4097B");
  constexpr std::uint64_t kSeed = 11;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::uint64_t draw = rng::at(kSeed, i);
    const Bytes size{draw >> (i % 64) << (i / 64 % 32)};
    // Above 10^19 a plain count of bytes has 20 digits, which parse_bytes does not take.
    if (size.value >= 10'000'000'000'000'000'000ULL) continue;
    const auto again = parse_bytes(format_bytes_exact(size));
    ASSERT_TRUE(again.has_value()) << "seed " << kSeed << " draw " << i << ": " << size.value;
    EXPECT_EQ(*again, size) << "seed " << kSeed << " draw " << i;
  }
}

}  // namespace
}  // namespace strata
