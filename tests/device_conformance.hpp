// What every Device must do, whatever runs beneath it. A new implementation joins with a fixture
// of a few lines: it describes how it is made and instantiates the suite (cpu_device_test.cpp).
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strata/device.hpp"
#include "support/pinned.hpp"

namespace strata::test {

struct DeviceUnderTest {
  std::string name;
  std::function<std::unique_ptr<Device>(Bytes arena)> make;
  // What this machine lacks to make one; empty: nothing.
  std::function<std::string()> missing = [] { return std::string(); };
  // Complaints about the test's own program; a device that does not check has none.
  std::function<std::vector<std::string>(Device&)> violations = [](Device&) {
    return std::vector<std::string>{};
  };
};

class DeviceConformance : public ::testing::TestWithParam<DeviceUnderTest> {
 protected:
  static constexpr Bytes kArena = 1_MiB;

  void SetUp() override;
  void TearDown() override;

  // The next `size_bytes` of the arena, leased.
  std::span<std::byte> take(std::size_t size_bytes);

  // Waits for all work on `stream`, and returns the bytes of device memory at `data`.
  std::vector<std::byte> download(StreamId stream, std::span<const std::byte> data);
  // Enqueues the copy of `bytes`, from a pinned copy of them.
  void upload(StreamId stream, std::span<std::byte> to, std::span<const std::byte> bytes);

  void finish(StreamId stream) { device_->synchronize(device_->record(stream)); }

  std::unique_ptr<Device> device_;

 private:
  std::deque<Pinned> uploads_;
  std::size_t taken_ = 0;
};

}  // namespace strata::test
