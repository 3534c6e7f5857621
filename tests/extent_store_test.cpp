#include "memory/extent_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
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

// Where the current version of an extent lies.
std::pair<std::string, std::uint64_t> place_of(const ExtentStore& store, ExtentId extent) {
  const ExtentStore::SlotIndex slot = store.slot_of(extent);
  return {store.path_of(slot), store.offset_of(slot)};
}

constexpr std::uint32_t kStream = 0;

TEST(ExtentStore, DealsAlignedExtentsOverTheDirectories) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  const std::string a = "/a/run/rank-0/states.bin";
  const std::string b = "/b/run/rank-0/states.bin";
  const ExtentId first = store.add(1_B, kStream);
  const ExtentId second = store.add(4096_B, kStream);
  const ExtentId third = store.add(4097_B, kStream);
  const ExtentId fourth = store.add(10_B, kStream);
  EXPECT_EQ(place_of(store, first), std::pair(a, std::uint64_t{0}));
  EXPECT_EQ(place_of(store, second), std::pair(b, std::uint64_t{0}));
  EXPECT_EQ(place_of(store, third), std::pair(a, std::uint64_t{4096}));
  EXPECT_EQ(place_of(store, fourth), std::pair(b, std::uint64_t{4096}));
  EXPECT_EQ(store.size(third), 4097_B);
  EXPECT_EQ(store.transfer_size(third), 8192_B);
  EXPECT_EQ(store.allocated(), Bytes{4096 * 5});

  store.open();
  EXPECT_EQ(disk.store()->find(a)->size(), Bytes{4096 * 3});
  EXPECT_EQ(disk.store()->find(b)->size(), Bytes{4096 * 2});
}

// The directories' shares of each stream by itself follow the weights, and a stream's extents do
// not come in long runs from one disk.
TEST(ExtentStore, StripesEachStreamByWeight) {
  SimulatedDisk disk;
  ExtentStoreOptions options = two_disks();
  options.directories.emplace_back("/c");
  options.weights = {3, 1, 2};
  ExtentStore store(disk, options);
  const std::vector<std::string> paths{"/a/run/rank-0/states.bin", "/b/run/rank-0/states.bin",
                                       "/c/run/rank-0/states.bin"};
  constexpr std::size_t kTiles = 600;
  for (std::size_t i = 0; i < kTiles; ++i) {
    for (const std::uint32_t stream : {0U, 1U, 2U, 3U, 4U}) {
      static_cast<void>(store.add(stream < 2 ? 8192_B : 16384_B, stream));
    }
  }
  for (std::uint32_t stream = 0; stream < 5; ++stream) {
    std::map<std::string, std::size_t> count;
    std::size_t run = 0;
    std::string last;
    for (std::uint32_t i = 0; i < kTiles; ++i) {
      const std::string path = place_of(store, ExtentId{i * 5 + stream}).first;
      ++count[path];
      run = path == last ? run + 1 : 1;
      last = path;
      EXPECT_LE(run, 3U) << "stream " << stream << " tile " << i;
    }
    EXPECT_EQ(count[paths[0]], kTiles * 3 / 6) << "stream " << stream;
    EXPECT_EQ(count[paths[1]], kTiles * 1 / 6) << "stream " << stream;
    EXPECT_EQ(count[paths[2]], kTiles * 2 / 6) << "stream " << stream;
  }
}

void write(SimulatedDisk& disk, ExtentStore& store, const ExtentStore::Write& write,
           AlignedPage& page, std::uint64_t checksum) {
  const IoRequest request = store.write_request(write, page.bytes.data());
  ASSERT_EQ(transfer(disk, request), static_cast<std::int64_t>(request.size.value));
  store.commit(write, checksum);
}

TEST(ExtentStore, ReadsBackWhatWasWrittenToEachExtent) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks(Rank{3}));
  std::vector<ExtentId> extents;
  for (int i = 0; i < 6; ++i) extents.push_back(store.add(100_B, kStream));
  store.open();
  auto page = std::make_unique<AlignedPage>();
  for (std::size_t i = 0; i < extents.size(); ++i) {
    EXPECT_FALSE(store.was_written(extents[i]));
    page->bytes.fill(static_cast<std::byte>(i + 1));
    write(disk, store, store.begin_write(extents[i]).value(), *page, i);
    EXPECT_TRUE(store.was_written(extents[i]));
  }
  for (std::size_t i = 0; i < extents.size(); ++i) {
    page->bytes.fill(std::byte{0});
    const IoRequest request = store.read_request(extents[i], page->bytes.data());
    EXPECT_EQ(request.size, 4096_B);
    ASSERT_EQ(transfer(disk, request), 4096);
    EXPECT_EQ(page->bytes[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(page->bytes[99], static_cast<std::byte>(i + 1));
    EXPECT_EQ(store.checksum(extents[i]), i);
  }
}

TEST(ExtentStore, SeedsTellExtentsVersionsAndRanksApart) {
  SimulatedDisk disk;
  std::set<std::uint64_t> seeds;
  for (const std::uint32_t rank : {0U, 1U}) {
    ExtentStore store(disk, two_disks(Rank{rank}));
    const ExtentId first = store.add(100_B, 0);
    const ExtentId second = store.add(100_B, 1);
    store.open();
    for (int version = 0; version < 3; ++version) {
      for (const ExtentId extent : {first, second}) {
        const std::uint64_t next = store.next_seed(extent);
        EXPECT_TRUE(seeds.insert(next).second);
        store.commit(store.begin_write(extent).value(), 0);
        EXPECT_EQ(store.seed(extent), next);
      }
    }
    // A write that fails leaves the version.
    const std::uint64_t seed = store.seed(first);
    store.abandon(store.begin_write(first).value());
    EXPECT_EQ(store.seed(first), seed);
  }
}

TEST(ExtentStore, WithoutSparesAWriteGoesInPlace) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  const ExtentId extent = store.add(100_B, kStream);
  store.add_spares(0);
  store.open();
  const ExtentStore::SlotIndex slot = store.slot_of(extent);
  for (int i = 0; i < 3; ++i) {
    const ExtentStore::Write one = store.begin_write(extent).value();
    EXPECT_EQ(one.slot, slot);
    store.commit(one, 0);
  }
}

TEST(ExtentStore, WithSparesAWriteLeavesTheOldVersionUntilItIsCommitted) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  const ExtentId extent = store.add(100_B, kStream);
  static_cast<void>(store.add(200_B, kStream));  // of the same size in the file
  static_cast<void>(store.add(5000_B, kStream));
  store.add_spares(2);
  EXPECT_EQ(store.allocated(), Bytes{4096 * (2 + 2) + 8192 * (1 + 1)})
      << "a spare for which there is no extent";
  store.open();
  auto page = std::make_unique<AlignedPage>();
  page->bytes.fill(std::byte{1});
  write(disk, store, store.begin_write(extent).value(), *page, 1);
  const auto read_first_byte = [&] {
    EXPECT_EQ(transfer(disk, store.read_request(extent, page->bytes.data())), 4096);
    return page->bytes[0];
  };

  // Fails after its bytes landed: the old version is whole.
  const ExtentStore::Write failing = store.begin_write(extent).value();
  page->bytes.fill(std::byte{2});
  ASSERT_EQ(transfer(disk, store.write_request(failing, page->bytes.data())), 4096);
  store.abandon(failing);
  EXPECT_EQ(read_first_byte(), std::byte{1});
  EXPECT_EQ(store.checksum(extent), 1U);

  const ExtentStore::SlotIndex before = store.slot_of(extent);
  page->bytes.fill(std::byte{3});
  write(disk, store, store.begin_write(extent).value(), *page, 3);
  EXPECT_NE(store.slot_of(extent), before);
  EXPECT_EQ(read_first_byte(), std::byte{3});
  // Slots come back: there is no end to writing.
  for (std::uint64_t i = 0; i < 20; ++i) {
    write(disk, store, store.begin_write(extent).value(), *page, i);
  }
}

TEST(ExtentStore, APinnedVersionOutlivesWrites) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  const ExtentId extent = store.add(100_B, kStream);
  store.add_spares(1);
  store.open();
  auto page = std::make_unique<AlignedPage>();
  page->bytes.fill(std::byte{1});
  write(disk, store, store.begin_write(extent).value(), *page, 11);
  const ExtentStore::Pin pin = store.pin(extent);
  page->bytes.fill(std::byte{2});
  write(disk, store, store.begin_write(extent).value(), *page, 22);
  // In place from here on: the only spare holds what is pinned.
  page->bytes.fill(std::byte{3});
  write(disk, store, store.begin_write(extent).value(), *page, 33);
  const ExtentStore::Pin both = store.pin(extent);
  EXPECT_FALSE(store.begin_write(extent)) << "nothing is free and everything is pinned";
  ASSERT_EQ(transfer(disk, store.read_request(pin, page->bytes.data())), 4096);
  EXPECT_EQ(page->bytes[0], std::byte{1});
  EXPECT_EQ(pin.checksum, 11U);
  store.unpin(pin);
  page->bytes.fill(std::byte{4});
  write(disk, store, store.begin_write(extent).value(), *page, 44);
  ASSERT_EQ(transfer(disk, store.read_request(both, page->bytes.data())), 4096);
  EXPECT_EQ(page->bytes[0], std::byte{3});
  store.unpin(both);
}

TEST(ExtentStore, CloseLeavesNothingAndMayBeRepeated) {
  SimulatedDisk disk;
  disk.store()->prepare_directory("/a", "/a");
  disk.store()->prepare_directory("/b", "/b");
  const auto before = disk.store()->directories();
  {
    ExtentStore store(disk, two_disks());
    static_cast<void>(store.add(100_B, kStream));
    static_cast<void>(store.add(100_B, kStream));
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
  static_cast<void>(store.add(100_B, kStream));
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
    static_cast<void>(store.add(100_B, kStream));
    static_cast<void>(store.add(100_B, kStream));
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
  static_cast<void>(first.add(100_B, kStream));
  static_cast<void>(second.add(100_B, kStream));
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
  static_cast<void>(store.add(Bytes{16384}, kStream));
  try {
    store.open();
    FAIL() << "an alignment of 16 KiB was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("16384"));
  }
}

TEST(ExtentStoreDeathTest, OneWriteOfAnExtentAtATime) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  const ExtentId extent = store.add(100_B, kStream);
  store.add_spares(1);
  store.open();
  const auto write = store.begin_write(extent);
  EXPECT_DEATH(static_cast<void>(store.begin_write(extent)), "two writes of one extent");
  store.abandon(*write);
  EXPECT_DEATH(store.abandon(*write), "never began");
}

TEST(ExtentStoreDeathTest, ExtentsAreFixedOnceOpen) {
  SimulatedDisk disk;
  ExtentStore store(disk, two_disks());
  static_cast<void>(store.add(100_B, kStream));
  store.open();
  EXPECT_DEATH(static_cast<void>(store.add(1_B, kStream)), "fixed once the store is open");
}

}  // namespace
}  // namespace strata::test
