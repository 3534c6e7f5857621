#include "paced/paced_disk.hpp"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "block_io_conformance.hpp"

namespace strata::test {
namespace {

class PacedPlace final : public IoPlace {
 public:
  std::unique_ptr<BlockIo> make() override { return make_with({}); }
  std::unique_ptr<BlockIo> make_with(PacedDisk::Options options) {
    options.pace.flush_seconds = 0;
    options.store = store_;
    return std::make_unique<PacedDisk>(options);
  }
  std::string root() const override { return "/paced"; }

 private:
  std::shared_ptr<FileStore> store_ = std::make_shared<FileStore>();
};

const IoUnderTest kPaced{.label = "paced",
                         .make_place = [] { return std::make_unique<PacedPlace>(); },
                         .make_serial = [](IoPlace& place) { return place.make(); }};

INSTANTIATE_TEST_SUITE_P(Paced, BlockIoConformance, testing::Values(kPaced), io_name);
INSTANTIATE_TEST_SUITE_P(Paced, BlockIoConformanceDeathTest, testing::Values(kPaced), io_name);

double seconds_of(clockid_t clock) {
  timespec now{};
  EXPECT_EQ(clock_gettime(clock, &now), 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Time is real: a lower bound is a promise of the pace and must hold; an upper bound depends on the
// machine being free and is wide.
class PacedDiskTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kBlock = 256 << 10;
  static constexpr std::uint64_t kBlocks = 16;

  void start(const PacedDisk::Options& options) {
    disk_ = std::make_unique<PacedDisk>(options);
    disk_->prepare_directory("/d", "/d", false);
    file_ = disk_->open({"/d/data", Bytes{2 * kBlock * kBlocks}});
    if (buffers_.empty()) {
      for (std::uint64_t i = 0; i < 2 * kBlocks; ++i) buffers_.emplace_back(Bytes{kBlock});
    }
  }

  IoRequest request(IoOp op, std::uint64_t i) {
    return {.op = op,
            .file = file_,
            .offset_bytes = i * kBlock,
            .data = buffers_[i].data(),
            .size = Bytes{kBlock},
            .tag = i};
  }
  std::vector<IoRequest> reads() {
    std::vector<IoRequest> all;
    for (std::uint64_t i = 0; i < kBlocks; ++i) all.push_back(request(IoOp::read, i));
    return all;
  }
  std::vector<IoRequest> writes() {
    std::vector<IoRequest> all;
    for (std::uint64_t i = 0; i < kBlocks; ++i) all.push_back(request(IoOp::write, kBlocks + i));
    return all;
  }
  double timed(const std::vector<IoRequest>& requests) {
    IoRunner runner(*disk_);
    const double begin = seconds_of(CLOCK_MONOTONIC);
    EXPECT_EQ(runner.run(requests).size(), requests.size());
    return seconds_of(CLOCK_MONOTONIC) - begin;
  }

  // 4 MiB take 42 ms to read and 84 ms to write.
  static PacedDisk::Options slow_disk() {
    return {.pace = {.read_bytes_per_second = 100e6,
                     .write_bytes_per_second = 50e6,
                     .half_duplex = true,
                     .request_latency_seconds = 0,
                     .flush_seconds = 0.005,
                     .flush_seconds_per_byte = 1e-8},
            .alignment = {.memory = Bytes{512}, .offset = Bytes{512}},
            .store = nullptr};
  }
  static constexpr double kReadSeconds = kBlock * kBlocks / 100e6;
  static constexpr double kWriteSeconds = kBlock * kBlocks / 50e6;
  static constexpr double kSlack = 0.5;  // for a busy machine

  std::unique_ptr<PacedDisk> disk_;
  FileId file_;
  std::vector<IoBuffer> buffers_;
};

TEST_F(PacedDiskTest, reads_and_writes_take_their_rates) {
  start(slow_disk());
  const double read_seconds = timed(reads());
  EXPECT_GE(read_seconds, kReadSeconds);
  EXPECT_LT(read_seconds, kReadSeconds + kSlack);
  const double write_seconds = timed(writes());
  EXPECT_GE(write_seconds, kWriteSeconds);
  EXPECT_LT(write_seconds, kWriteSeconds + kSlack);
}

TEST_F(PacedDiskTest, a_half_duplex_mix_takes_the_sum_and_a_full_duplex_mix_the_maximum) {
  PacedDisk::Options options = slow_disk();
  std::vector<double> seconds;
  for (const bool half_duplex : {true, false}) {
    options.pace.half_duplex = half_duplex;
    start(options);
    std::vector<IoRequest> mix = reads();
    for (const IoRequest& write : writes()) mix.push_back(write);
    seconds.push_back(timed(mix));
  }
  EXPECT_GE(seconds[0], kReadSeconds + kWriteSeconds);
  EXPECT_GE(seconds[1], std::max(kReadSeconds, kWriteSeconds));
  EXPECT_LT(seconds[0], kReadSeconds + kWriteSeconds + kSlack);
  EXPECT_LT(seconds[1], kWriteSeconds + kSlack);
}

TEST_F(PacedDiskTest, latency_is_paid_once_for_requests_in_flight_together) {
  PacedDisk::Options options = slow_disk();
  options.pace.request_latency_seconds = 0.05;
  start(options);
  const double seconds = timed(reads());
  EXPECT_GE(seconds, kReadSeconds + 0.05);
  EXPECT_LT(seconds, kReadSeconds + kBlocks * 0.05) << "latencies add up";
}

TEST_F(PacedDiskTest, a_flush_grows_with_the_bytes_written_and_stops_reads) {
  start(slow_disk());
  const std::vector<IoRequest> flush{{.op = IoOp::flush, .file = file_}};
  const double clean = timed(flush);
  EXPECT_GE(clean, 0.005);
  timed(writes());
  std::vector<IoRequest> flush_then_read = flush;
  flush_then_read.push_back(request(IoOp::read, 0));
  const double dirty_seconds = 0.005 + kBlock * kBlocks * 1e-8;
  EXPECT_GE(timed(flush_then_read), dirty_seconds + kBlock / 100e6);
  const double clean_again = timed(flush);
  EXPECT_GE(clean_again, 0.005);
  EXPECT_LT(clean_again, 0.005 + kSlack);
}

TEST_F(PacedDiskTest, late_polls_do_not_slow_the_disk) {
  start(slow_disk());
  disk_->submit(reads());
  IoRunner runner(*disk_);
  EXPECT_EQ(runner.wait(kBlocks).size(), kBlocks);
  // Nothing was waited for between requests: the busy time is the pace, not the wake-ups.
  EXPECT_GE(disk_->counters().busy_seconds, kReadSeconds);
  EXPECT_LT(disk_->counters().busy_seconds, kReadSeconds + kSlack);
}

TEST_F(PacedDiskTest, waiting_costs_no_cpu) {
  PacedDisk::Options options = slow_disk();
  options.pace.read_bytes_per_second = 10e6;  // 0.42 s
  start(options);
  const double cpu_before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const double wall = timed(reads());
  const double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
  EXPECT_GE(wall, 0.4);
  EXPECT_LT(cpu, wall / 4);
}

}  // namespace
}  // namespace strata::test
