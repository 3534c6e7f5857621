#include "memory/extent_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strata/error.hpp"
#include "support/simulated_disk.hpp"

namespace strata::test {
namespace {

ExtentStoreOptions two_disks(Rank rank = Rank{0}) {
  return {.directories = {"/a", "/b"}, .run = "run", .rank = rank};
}

struct AlignedPage {
  alignas(4096) std::array<std::byte, 4096> bytes{};
};

std::int64_t transfer(SimulatedDisk& disk, const IoRequest& request) {
  disk.submit(std::span(&request, 1));
  IoResult result;
  while (disk.poll(std::span(&result, 1)) == 0) {
  }
  return result.result;
}

TEST(ExtentStore, DealsAlignedExtentsOverTheDirectories) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  const Extent first = store.allocate(1_B);
  const Extent second = store.allocate(4096_B);
  const Extent third = store.allocate(4097_B);
  const Extent fourth = store.allocate(10_B);
  EXPECT_EQ(std::pair(first.file, first.offset_bytes), std::pair(0U, std::uint64_t{0}));
  EXPECT_EQ(std::pair(second.file, second.offset_bytes), std::pair(1U, std::uint64_t{0}));
  EXPECT_EQ(std::pair(third.file, third.offset_bytes), std::pair(0U, std::uint64_t{4096}));
  EXPECT_EQ(std::pair(fourth.file, fourth.offset_bytes), std::pair(1U, std::uint64_t{4096}));
  EXPECT_EQ(third.size, 4097_B);
  EXPECT_EQ(ExtentStore::transfer_size(third), 8192_B);
  EXPECT_EQ(store.allocated(), Bytes{4096 * 5});
  EXPECT_EQ(store.path_of(third), "/a/run/rank-0/states.bin");

  store.open();
  EXPECT_EQ(disk.store()->find("/a/run/rank-0/states.bin")->size(), Bytes{4096 * 3});
  EXPECT_EQ(disk.store()->find("/b/run/rank-0/states.bin")->size(), Bytes{4096 * 2});
}

TEST(ExtentStore, ReadsBackWhatWasWrittenToEachExtent) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks(Rank{3}));
  std::vector<Extent> extents;
  for (int i = 0; i < 6; ++i) extents.push_back(store.allocate(100_B));
  store.open();
  auto page = std::make_unique<AlignedPage>();
  for (std::size_t i = 0; i < extents.size(); ++i) {
    page->bytes.fill(static_cast<std::byte>(i + 1));
    const IoRequest request = store.request(IoOp::write, extents[i], page->bytes.data());
    EXPECT_EQ(request.size, 4096_B);
    ASSERT_EQ(transfer(disk, request), 4096);
  }
  for (std::size_t i = 0; i < extents.size(); ++i) {
    page->bytes.fill(std::byte{0});
    ASSERT_EQ(transfer(disk, store.request(IoOp::read, extents[i], page->bytes.data())), 4096);
    EXPECT_EQ(page->bytes[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(page->bytes[99], static_cast<std::byte>(i + 1));
  }
}

TEST(ExtentStore, CloseLeavesNothingAndMayBeRepeated) {
  SimulatedDisk disk;
  disk.store()->prepare_directory("/a", "/a");
  disk.store()->prepare_directory("/b", "/b");
  const auto before = disk.store()->directories();
  {
    ExtentStore store(disk, two_disks());
    static_cast<void>(store.allocate(100_B));
    static_cast<void>(store.allocate(100_B));
    store.open();
    EXPECT_EQ(disk.store()->paths().size(), 2U);
    store.close();
    EXPECT_TRUE(disk.store()->paths().empty());
    store.close();
  }
  EXPECT_EQ(disk.store()->directories(), before);
}

TEST(ExtentStore, ADirectoryWithoutExtentsGetsNoFile) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  static_cast<void>(store.allocate(100_B));
  store.open();
  EXPECT_EQ(disk.store()->paths(), std::vector<std::string>{"/a/run/rank-0/states.bin"});
}

TEST(ExtentStore, AnEmptyStoreTouchesNothing) {
  SimulatedDisk disk;
  ExtentStore store(disk, {.directories = {}, .run = "run", .rank = Rank{0}});
  store.open();
  EXPECT_EQ(store.allocated(), 0_B);
  EXPECT_TRUE(disk.store()->paths().empty());
}

// Whichever step of open() fails, everything is as before and the error is the one that happened.
TEST(ExtentStore, AFailedOpenLeavesNothing) {
  for (std::uint64_t k = 0; k < 4; ++k) {
    SCOPED_TRACE("step " + std::to_string(k));
    SimulatedDisk disk;
    disk.store()->prepare_directory("/a", "/a");
    disk.store()->prepare_directory("/b", "/b");
    const auto before = disk.store()->directories();
    if (k % 2 == 0) {
      disk.fail_prepare_directory(EROFS, k / 2);
    } else {
      disk.fail_open(ENOSPC, k / 2);
    }
    ExtentStore store(disk, two_disks());
    static_cast<void>(store.allocate(100_B));
    static_cast<void>(store.allocate(100_B));
    try {
      store.open();
      FAIL() << "open() succeeded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), k % 2 == 0 ? ErrorCode::io : ErrorCode::no_space);
    }
    EXPECT_TRUE(disk.store()->paths().empty());
    EXPECT_EQ(disk.store()->directories(), before);
  }
}

TEST(ExtentStore, TwoSessionsOnOneRunAreRefused) {
  const auto files = std::make_shared<FileStore>();
  SimulatedDisk::Options options;
  options.store = files;
  SimulatedDisk first_disk(options);
  SimulatedDisk second_disk(options);
  ExtentStore first(first_disk, two_disks());
  ExtentStore second(second_disk, two_disks());
  static_cast<void>(first.allocate(100_B));
  static_cast<void>(second.allocate(100_B));
  first.open();
  try {
    second.open();
    FAIL() << "two sessions share a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::in_use);
  }
  EXPECT_EQ(files->paths().size(), 1U) << "the loser removed the winner's file";
  first.close();
  second.open();
}

TEST(ExtentStore, RefusesADiskThatAsksForMoreThanExtentsHave) {
  SimulatedDisk::Options options;
  options.alignment = {.memory = Bytes{512}, .offset = Bytes{16384}};
  SimulatedDisk disk(options);
  ExtentStore store(disk, two_disks());
  static_cast<void>(store.allocate(Bytes{16384}));
  try {
    store.open();
    FAIL() << "an alignment of 16 KiB was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("16384"));
  }
}

TEST(ExtentStoreDeathTest, ExtentsAreFixedOnceOpen) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  static_cast<void>(store.allocate(100_B));
  store.open();
  EXPECT_DEATH(static_cast<void>(store.allocate(1_B)), "fixed once the store is open");
}

}  // namespace
}  // namespace strata::test
