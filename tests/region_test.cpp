// Carver, HostRegion and RangeAllocator.
#include "memory/region.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "memory/range_allocator.hpp"
#include "strata/error.hpp"
#include "support/random_model.hpp"

namespace strata::test {
namespace {

TEST(Carver, HandsOutConsecutivePiecesAtMultiplesOf256) {
  alignas(256) std::array<std::byte, 1024> memory;
  Carver carver(memory);
  const auto a = carver.carve(1_B);
  const auto b = carver.carve(256_B);
  const auto c = carver.carve(300_B);
  EXPECT_EQ(a.data(), memory.data());
  EXPECT_EQ(a.size(), 1U);
  EXPECT_EQ(b.data(), memory.data() + 256);
  EXPECT_EQ(c.data(), memory.data() + 512);
  EXPECT_EQ(c.size(), 300U);
  EXPECT_EQ(carver.left(), 0_B);
  EXPECT_TRUE(carver.carve(0_B).empty());
  EXPECT_DEATH(carver.carve(1_B), "carving 256 bytes of 0 left");
}

TEST(HostRegion, IsZeroedExactAndOnAHugePage) {
  const HostRegion region(3_MiB + 5_B, {});
  EXPECT_EQ(region.memory().size(), (3_MiB).value + 5);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.memory().data()) % (2_MiB).value, 0U);
  for (const std::size_t at : {std::size_t{0}, region.memory().size() - 1}) {
    EXPECT_EQ(region.memory()[at], std::byte{0});
    region.memory()[at] = std::byte{1};
  }
  EXPECT_TRUE(HostRegion(0_B, {}).memory().empty());
}

TEST(HostRegion, RefusesWhatNoProcessCanMap) {
  for (const Bytes size : {Bytes{~std::uint64_t{0}}, Bytes{std::uint64_t{1} << 60}}) {
    try {
      const HostRegion region(size, {});
      FAIL() << size.value << " bytes were mapped";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::budget_exceeded);
    }
  }
}

// Ends the process: 0 when exactly one warning came and the memory works all the same.
[[noreturn]] void map_without_the_right_to_lock() {
  constexpr uid_t kNobody = 65534;
  const rlimit none{0, 0};
  if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0) std::_Exit(9);
  // Root may lock whatever the limit says.
  if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(8);
  std::vector<std::string> warnings;
  const HostRegion region(1_MiB, {.log = [&](LogLevel level, std::string_view message) {
                            if (level == LogLevel::warning) warnings.emplace_back(message);
                          }});
  std::memset(region.memory().data(), 1, region.memory().size());
  const bool told = warnings.size() == 1 && warnings[0].find("ulimit -l") != std::string::npos;
  std::_Exit(told ? 0 : 1);
}

// In a child, since a limit that was lowered cannot be raised again.
TEST(HostRegionDeathTest, TellsOnceThatMemoryStaysUnpinnedAndWorks) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers replace mlock by a function that does nothing";
#endif
  EXPECT_EXIT(map_without_the_right_to_lock(), ::testing::ExitedWithCode(0), "");
}

// The memory is there before its first use, so that a shortage shows at open().
TEST(HostRegion, IsInRamFromTheStart) {
  const HostRegion region(8_MiB, {});
  std::vector<unsigned char> resident((8_MiB).value / 4096);
  ASSERT_EQ(::mincore(region.memory().data(), region.memory().size(), resident.data()), 0);
  for (const unsigned char page : resident) ASSERT_EQ(page & 1U, 1U);
}

// Ends the process: 0 when small pages are reported and warned of.
[[noreturn]] void map_without_huge_pages() {
  if (::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) std::_Exit(9);
  std::vector<std::string> warnings;
  const HostRegion region(4_MiB, {.what = "staging memory",
                                  .for_transfers = true,
                                  .log = [&](LogLevel level, std::string_view message) {
                                    if (level == LogLevel::warning) warnings.emplace_back(message);
                                  }});
  if (region.pages() == HostRegion::Pages::huge_tlb) std::_Exit(0);  // the pool has some
  if (region.page_size() != 4_KiB) std::_Exit(1);
  for (const std::string& warning : warnings) {
    if (warning.find("staging memory: 4 MiB on 4 KiB pages") == 0) std::_Exit(0);
  }
  std::_Exit(2);
}

TEST(HostRegionDeathTest, TellsWhichPagesItGot) {
  EXPECT_EXIT(map_without_huge_pages(), ::testing::ExitedWithCode(0), "");
  std::string modes;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), modes);
  if (modes.find("[never]") != std::string::npos || modes.empty()) {
    GTEST_SKIP() << "transparent huge pages are off here: " << modes;
  }
  std::vector<std::string> lines;
  const HostRegion region(4_MiB, {.what = "staging memory",
                                  .for_transfers = true,
                                  .log = [&](LogLevel level, std::string_view message) {
                                    if (level == LogLevel::info) lines.emplace_back(message);
                                  }});
  EXPECT_EQ(region.page_size(), 2_MiB);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], ::testing::HasSubstr("staging memory: 4 MiB on 2 MiB pages"));
}

TEST(RangeAllocator, FirstFitAndJoinedHoles) {
  alignas(256) std::array<std::byte, 1024> memory;
  RangeAllocator allocator{std::span<std::byte>(memory)};
  EXPECT_EQ(allocator.largest_hole(), 1024_B);
  const auto a = allocator.allocate(256_B);
  const auto b = allocator.allocate(1_B);
  const auto c = allocator.allocate(512_B);
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->data(), memory.data());
  EXPECT_EQ(b->data(), memory.data() + 256);
  EXPECT_EQ(b->size(), 1U);
  EXPECT_EQ(c->data(), memory.data() + 512);
  EXPECT_FALSE(allocator.allocate(1_B));
  allocator.release(*a);
  allocator.release(*c);
  EXPECT_EQ(allocator.largest_hole(), 512_B);
  EXPECT_FALSE(allocator.allocate(513_B));
  allocator.release(*b);  // joins the holes on both sides
  EXPECT_EQ(allocator.largest_hole(), 1024_B);
  EXPECT_TRUE(allocator.allocate(1024_B));
}

TEST(RangeAllocator, RefusesAbsurdSizesAndDoubleReleases) {
  EXPECT_FALSE(RangeAllocator().allocate(1_B));
  alignas(256) std::array<std::byte, 512> memory;
  RangeAllocator allocator{std::span<std::byte>(memory)};
  EXPECT_FALSE(allocator.allocate(Bytes{~std::uint64_t{0}})) << "rounding wrapped to 0 bytes";
  const auto piece = allocator.allocate(512_B);
  ASSERT_TRUE(piece);
  allocator.release(*piece);
  EXPECT_DEATH(allocator.release(*piece), "released twice");
}

// Against a map of bytes: pieces never overlap, and what is free can be allocated in one piece
// exactly when a hole is large enough.
TEST(RangeAllocator, RandomUseAgainstAMapOfBlocks) {
  constexpr std::size_t kBlocks = 32;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<std::byte> memory(kBlocks * 256);
    RangeAllocator allocator{std::span<std::byte>(memory)};
    std::vector<bool> taken(kBlocks);
    std::vector<std::span<std::byte>> pieces;
    RandomStream random(seed);
    const auto mark = [&](std::span<std::byte> piece, bool value) {
      const auto first = static_cast<std::size_t>(piece.data() - memory.data()) / 256;
      for (std::size_t i = 0; i < (piece.size() + 255) / 256; ++i) {
        ASSERT_NE(taken.at(first + i), value);
        taken[first + i] = value;
      }
    };
    for (int i = 0; i < 400; ++i) {
      std::size_t longest = 0;
      std::size_t run = 0;
      for (const bool is_taken : taken) longest = std::max(longest, run = is_taken ? 0 : run + 1);
      ASSERT_EQ(allocator.largest_hole().value, longest * 256);
      if (!pieces.empty() && random.below(2) == 0) {
        const std::size_t which = random.below(pieces.size());
        mark(pieces[which], false);
        allocator.release(pieces[which]);
        pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        const Bytes size{1 + random.below(8 * 256)};
        const auto piece = allocator.allocate(size);
        ASSERT_EQ(piece.has_value(), round_up(size.value, 256) <= longest * 256);
        if (!piece) continue;
        mark(*piece, true);
        pieces.push_back(*piece);
      }
    }
  }
}

}  // namespace
}  // namespace strata::test
