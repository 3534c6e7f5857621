// What every BlockIo must do. A test program lists block_io_conformance.cpp among its sources and
// instantiates the suite with its implementations:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, BlockIoConformance, testing::Values(IoUnderTest{...}), io_name);
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "strata/block_io.hpp"

namespace strata::test {

// One place with files, and adapters on it: each make() is what another process would be.
class IoPlace {
 public:
  virtual ~IoPlace() = default;
  virtual std::unique_ptr<BlockIo> make() = 0;
  virtual std::string root() const = 0;  // exists
};

struct IoUnderTest {
  std::string label;
  // May return null after GTEST_SKIP() where this machine lacks what it needs.
  std::function<std::unique_ptr<IoPlace>()> make_place;
  // Results come in order of (priority, submission) when requests run one at a time.
  std::function<std::unique_ptr<BlockIo>(IoPlace&)> make_serial = nullptr;
};

inline void PrintTo(const IoUnderTest& io, std::ostream* out) { *out << io.label; }

inline std::string io_name(const testing::TestParamInfo<IoUnderTest>& info) {
  return info.param.label;
}

// Memory of a request, aligned to 4096 bytes; `shift` moves its start off that.
class IoBuffer {
 public:
  explicit IoBuffer(Bytes size, std::size_t shift = 0);
  std::byte* data() { return memory_.get() + shift_; }
  std::span<std::byte> bytes() { return {data(), size_}; }
  // Distinct for each (seed, position).
  void fill(std::uint64_t seed);
  bool holds(std::uint64_t seed) const;
  bool holds_zeros() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::size_t size_;
  std::size_t shift_;
  std::unique_ptr<std::byte[], Free> memory_;
};

// Submits and waits by the descriptor, as the engine does.
class IoRunner {
 public:
  explicit IoRunner(BlockIo& io);

  // Exactly `count` results, in the order of their arrival. Fails the test after 60 s without.
  std::vector<IoResult> wait(std::size_t count);
  std::vector<IoResult> run(std::span<const IoRequest> requests);
  std::int64_t run(const IoRequest& request);
  std::int64_t read(FileId file, std::uint64_t offset_bytes, std::span<std::byte> into);
  std::int64_t write(FileId file, std::uint64_t offset_bytes, std::span<std::byte> from);
  std::int64_t flush(FileId file);

 private:
  bool wait_for_descriptor();

  BlockIo& io_;
};

class BlockIoConformance : public testing::TestWithParam<IoUnderTest> {
 protected:
  void SetUp() override;
  std::string directory() const { return place_->root() + "/run/rank-0"; }
  std::string path(const std::string& name = "data") const { return directory() + "/" + name; }

  std::unique_ptr<IoPlace> place_;
  std::unique_ptr<BlockIo> io_;
};

// Broken preconditions; instantiated beside the suite.
using BlockIoConformanceDeathTest = BlockIoConformance;

}  // namespace strata::test
