#include "block_io_conformance.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "base/rng.hpp"
#include "strata/error.hpp"

namespace strata::test {

void IoBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

IoBuffer::IoBuffer(Bytes size, std::size_t shift)
    : size_(size.value),
      shift_(shift),
      memory_(static_cast<std::byte*>(
          std::aligned_alloc(4096, round_up(size.value + shift + 1, 4096)))) {
  std::memset(memory_.get(), 0xA5, size_ + shift_);
}

void IoBuffer::fill(std::uint64_t seed) {
  for (std::size_t i = 0; i < size_; ++i) {
    data()[i] = static_cast<std::byte>(rng::at(seed, i / 8) >> (i % 8 * 8));
  }
}

bool IoBuffer::holds(std::uint64_t seed) const {
  IoBuffer expected(Bytes{size_});
  expected.fill(seed);
  return std::memcmp(expected.data(), memory_.get() + shift_, size_) == 0;
}

bool IoBuffer::holds_zeros() const {
  const std::byte* begin = memory_.get() + shift_;
  return std::all_of(begin, begin + size_, [](std::byte b) { return b == std::byte{0}; });
}

IoRunner::IoRunner(BlockIo& io) : io_(io) {}

bool IoRunner::wait_for_descriptor() {
  pollfd readable{.fd = io_.descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&readable, 1, 60'000) == 1;
}

std::vector<IoResult> IoRunner::wait(std::size_t count) {
  std::vector<IoResult> all;
  IoResult some[4];
  while (all.size() < count) {
    const std::size_t got =
        io_.poll(std::span(some).first(std::min<std::size_t>(4, count - all.size())));
    all.insert(all.end(), some, some + got);
    if (got > 0 || wait_for_descriptor()) continue;
    ADD_FAILURE() << "the descriptor is not readable with " << count - all.size()
                  << " results missing";
    break;
  }
  return all;
}

std::vector<IoResult> IoRunner::run(std::span<const IoRequest> requests) {
  io_.submit(requests);
  return wait(requests.size());
}

std::int64_t IoRunner::run(const IoRequest& request) {
  const std::vector<IoResult> results = run(std::span(&request, 1));
  if (results.size() != 1) return INT64_MIN;
  EXPECT_EQ(results[0].tag, request.tag);
  return results[0].result;
}

std::int64_t IoRunner::read(FileId file, std::uint64_t offset_bytes, std::span<std::byte> into) {
  return run(IoRequest{.op = IoOp::read,
                       .file = file,
                       .offset_bytes = offset_bytes,
                       .data = into.data(),
                       .size = Bytes{into.size()},
                       .tag = 7});
}

std::int64_t IoRunner::write(FileId file, std::uint64_t offset_bytes, std::span<std::byte> from) {
  return run(IoRequest{.op = IoOp::write,
                       .file = file,
                       .offset_bytes = offset_bytes,
                       .data = from.data(),
                       .size = Bytes{from.size()},
                       .tag = 8});
}

std::int64_t IoRunner::flush(FileId file) {
  return run(IoRequest{.op = IoOp::flush, .file = file, .tag = 9});
}

void BlockIoConformance::SetUp() {
  place_ = GetParam().make_place();
  if (IsSkipped() || HasFatalFailure()) return;
  ASSERT_NE(place_, nullptr);
  io_ = place_->make();
  io_->prepare_directory(place_->root(), directory(), false);
}

namespace {

ErrorCode code_of(const std::function<void()>& call, std::string* path = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (path != nullptr) *path = error.context().path;
    return error.code();
  }
  ADD_FAILURE() << "no Error";
  return ErrorCode::invalid_argument;
}

TEST_P(BlockIoConformance, every_size_makes_the_round_trip_and_touches_nothing_beside_it) {
  IoRunner runner(*io_);
  const FileId file = io_->open({path(), 1_MiB});
  const std::uint64_t step = io_->alignment(file).offset.value;
  const std::size_t shift = io_->alignment(file).memory == Bytes{1} ? 1 : 0;
  for (const std::uint64_t count :
       {0, 1, 2, 3, 7, 8, 9, 31, 64, 65, 255, 511, 513, 1026, 4095, 4096, 4097}) {
    const std::uint64_t size = count * step;
    if (size + 3 * step > (1_MiB).value) continue;
    SCOPED_TRACE(size);
    IoBuffer around(Bytes{size + 2 * step}), out(Bytes{size}, shift), in(Bytes{size}, shift);
    around.fill(1000 + count);
    out.fill(count);
    ASSERT_EQ(runner.write(file, step, around.bytes()), static_cast<std::int64_t>(size + 2 * step));
    ASSERT_EQ(runner.write(file, 2 * step, out.bytes()), static_cast<std::int64_t>(size));
    ASSERT_EQ(runner.read(file, 2 * step, in.bytes()), static_cast<std::int64_t>(size));
    EXPECT_TRUE(in.holds(count));

    std::memcpy(around.data() + step, out.data(), size);
    IoBuffer seen(Bytes{size + 2 * step});
    ASSERT_EQ(runner.read(file, step, seen.bytes()), static_cast<std::int64_t>(size + 2 * step));
    EXPECT_TRUE(std::ranges::equal(seen.bytes(), around.bytes()));
  }
  io_->close(file, true);
}

TEST_P(BlockIoConformance, many_requests_in_random_order_each_meet_their_own_bytes) {
  constexpr std::uint32_t kSeed = 20240607;
  constexpr std::size_t kCount = 96;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  IoRunner runner(*io_);
  const FileId first = io_->open({path("first"), Bytes{kCount * 8192}});
  const FileId second = io_->open({path("second"), Bytes{kCount * 8192}});
  std::vector<IoBuffer> buffers;
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < kCount; ++i) {
    buffers.emplace_back(Bytes{8192});
    buffers.back().fill(i);
    requests.push_back({.op = IoOp::write,
                        .file = i % 3 == 0 ? first : second,
                        .offset_bytes = i * 8192,
                        .data = buffers.back().data(),
                        .size = 8_KiB,
                        .priority = random() % 5,
                        .tag = i});
  }
  for (const IoOp op : {IoOp::write, IoOp::read}) {
    std::shuffle(requests.begin(), requests.end(), random);
    for (IoRequest& request : requests) request.op = op;
    if (op == IoOp::read) {
      for (IoBuffer& buffer : buffers) buffer.fill(9999);
    }
    std::set<std::uint64_t> tags;
    for (const IoResult& result : runner.run(requests)) {
      EXPECT_EQ(result.result, 8192);
      tags.insert(result.tag);
    }
    EXPECT_EQ(tags.size(), kCount);
  }
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_TRUE(buffers[i].holds(i)) << "request " << i;
  io_->close(first, true);
  io_->close(second, true);
}

TEST_P(BlockIoConformance, serial_requests_run_by_priority_then_by_order_of_submission) {
  if (GetParam().make_serial == nullptr) GTEST_SKIP() << "reorders by design";
  io_ = GetParam().make_serial(*place_);
  IoRunner runner(*io_);
  const FileId file = io_->open({path(), 1_MiB});
  const std::vector<std::uint64_t> priorities{5, 1, 5, 0, 1, 9, 0, 5, UINT64_MAX, 1};
  std::vector<IoBuffer> buffers;
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < priorities.size(); ++i) {
    buffers.emplace_back(4_KiB);
    requests.push_back({.op = IoOp::read,
                        .file = file,
                        .offset_bytes = i * 4096,
                        .data = buffers.back().data(),
                        .size = 4_KiB,
                        .priority = priorities[i],
                        .tag = i});
  }
  std::vector<std::uint64_t> order;
  for (const IoResult& result : runner.run(requests)) order.push_back(result.tag);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{3, 6, 1, 4, 9, 0, 2, 7, 5, 8}));
  io_->close(file, true);
}

TEST_P(BlockIoConformance, a_read_across_the_end_of_the_file_is_short) {
  IoRunner runner(*io_);
  const FileId file = io_->open({path(), 64_KiB});
  IoBuffer content(64_KiB), in(64_KiB), last(16_KiB);
  content.fill(3);
  ASSERT_EQ(runner.write(file, 0, content.bytes()), 65536);
  EXPECT_EQ(runner.read(file, 49152, in.bytes()), 16384);
  std::memcpy(last.data(), content.data() + 49152, 16384);
  EXPECT_TRUE(std::ranges::equal(in.bytes().first(16384), last.bytes()));
  EXPECT_EQ(runner.read(file, 65536, in.bytes()), 0);
  EXPECT_EQ(runner.read(file, 1 << 20, in.bytes()), 0);
  io_->close(file, true);
}

TEST_P(BlockIoConformance, a_new_file_holds_zeros_and_a_kept_one_its_content) {
  IoBuffer content(32_KiB), in(32_KiB);
  content.fill(11);
  {
    IoRunner runner(*io_);
    const FileId file = io_->open({path(), 32_KiB});
    ASSERT_EQ(runner.read(file, 0, in.bytes()), 32768);
    EXPECT_TRUE(in.holds_zeros());
    ASSERT_EQ(runner.write(file, 0, content.bytes()), 32768);
    ASSERT_EQ(runner.flush(file), 0);
    io_->close(file, false);
  }
  io_ = place_->make();  // another process, later
  IoRunner runner(*io_);
  FileId file = io_->open({path(), 32_KiB});
  ASSERT_EQ(runner.read(file, 0, in.bytes()), 32768);
  EXPECT_TRUE(in.holds(11));
  io_->close(file, true);

  file = io_->open({path(), 32_KiB});
  ASSERT_EQ(runner.read(file, 0, in.bytes()), 32768);
  EXPECT_TRUE(in.holds_zeros()) << "content survived close(remove)";
  io_->close(file, true);
}

TEST_P(BlockIoConformance, a_reused_file_gets_the_size_that_is_asked_for) {
  IoRunner runner(*io_);
  IoBuffer content(64_KiB), in(64_KiB);
  content.fill(12);
  FileId file = io_->open({path(), 64_KiB});
  ASSERT_EQ(runner.write(file, 0, content.bytes()), 65536);
  io_->close(file, false);

  file = io_->open({path(), 16_KiB});
  EXPECT_EQ(runner.read(file, 0, in.bytes()), 16384);
  io_->close(file, false);

  file = io_->open({path(), 64_KiB});
  ASSERT_EQ(runner.read(file, 0, in.bytes()), 65536);
  EXPECT_TRUE(std::ranges::equal(in.bytes().first(16384), content.bytes().first(16384)));
  const auto cut_off = in.bytes().subspan(16384);
  EXPECT_TRUE(std::ranges::all_of(cut_off, [](std::byte b) { return b == std::byte{0}; }));
  io_->close(file, true);
}

TEST_P(BlockIoConformance, an_empty_file_can_be_opened_and_read) {
  IoRunner runner(*io_);
  const FileId file = io_->open({path(), Bytes{0}});
  IoBuffer in(4_KiB);
  EXPECT_EQ(runner.read(file, 0, in.bytes()), 0);
  EXPECT_EQ(runner.flush(file), 0);
  io_->close(file, true);
}

TEST_P(BlockIoConformance, a_file_that_is_open_elsewhere_is_in_use) {
  const std::unique_ptr<BlockIo> other = place_->make();
  const FileId file = io_->open({path(), 16_KiB});
  std::string named;
  EXPECT_EQ(code_of([&] { other->open({path(), 16_KiB}); }, &named), ErrorCode::in_use);
  EXPECT_EQ(named, path());
  EXPECT_EQ(code_of([&] { io_->open({path(), 16_KiB}); }), ErrorCode::in_use);
  io_->close(file, false);
  const FileId theirs = other->open({path(), 16_KiB});
  EXPECT_EQ(code_of([&] { io_->open({path(), 16_KiB}); }), ErrorCode::in_use);
  other->close(theirs, true);
}

TEST_P(BlockIoConformance, the_end_of_the_adapter_frees_its_files) {
  io_->open({path(), 16_KiB});
  io_.reset();
  io_ = place_->make();
  io_->close(io_->open({path(), 16_KiB}), true);
}

TEST_P(BlockIoConformance, open_in_a_directory_that_was_not_prepared_is_an_io_error) {
  const std::string missing = place_->root() + "/never/data";
  std::string named;
  EXPECT_EQ(code_of([&] { io_->open({missing, 16_KiB}); }, &named), ErrorCode::io);
  EXPECT_EQ(named, missing);
}

TEST_P(BlockIoConformance, poll_returns_the_rest_later) {
  IoRunner runner(*io_);
  const FileId file = io_->open({path(), 64_KiB});
  std::vector<IoRequest> requests;
  for (std::uint64_t i = 0; i < 9; ++i) {
    requests.push_back({.op = IoOp::flush, .file = file, .tag = 100 + i});
  }
  io_->submit({});
  io_->submit(requests);
  std::set<std::uint64_t> tags;
  EXPECT_EQ(io_->poll({}), 0U);
  for (const std::size_t count : {1, 2, 6}) {
    for (const IoResult& result : runner.wait(count)) tags.insert(result.tag);
  }
  EXPECT_EQ(tags, (std::set<std::uint64_t>{100, 101, 102, 103, 104, 105, 106, 107, 108}));
  IoResult none[1];
  EXPECT_EQ(io_->poll(none), 0U);
  io_->close(file, true);
}

TEST_P(BlockIoConformance, counters_are_exact) {
  const auto begin = std::chrono::steady_clock::now();
  IoRunner runner(*io_);
  const FileId file = io_->open({path(), 64_KiB});
  IoBuffer buffer(64_KiB);
  EXPECT_EQ(io_->counters().reads, 0U);
  EXPECT_EQ(io_->counters().busy_seconds, 0);
  runner.write(file, 0, buffer.bytes());
  runner.write(file, 4096, buffer.bytes().first(8192));
  runner.read(file, 0, buffer.bytes().first(4096));
  runner.read(file, 49152, buffer.bytes());  // 16384 up to the end
  runner.read(file, 65536, buffer.bytes());  // nothing
  runner.flush(file);
  const IoCounters counters = io_->counters();
  EXPECT_EQ(counters.written.value, 65536U + 8192U);
  EXPECT_EQ(counters.writes, 2U);
  EXPECT_EQ(counters.read.value, 4096U + 16384U);
  EXPECT_EQ(counters.reads, 3U);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(counters.busy_seconds, 0);
  EXPECT_LE(counters.busy_seconds, wall.count());
  EXPECT_EQ(io_->counters().busy_seconds, counters.busy_seconds) << "busy while idle";
  io_->close(file, true);
}

TEST_P(BlockIoConformance, directories_are_made_again_and_removed_when_empty) {
  io_->prepare_directory(place_->root(), directory(), false);
  io_->prepare_directory(place_->root(), place_->root(), false);
  const FileId file = io_->open({path(), 16_KiB});
  io_->remove_directory(place_->root(), directory());  // not empty: stays
  io_->close(file, true);
  const FileId again = io_->open({path(), 16_KiB});
  io_->close(again, true);

  io_->remove_directory(place_->root(), directory());
  EXPECT_EQ(code_of([&] { io_->open({path(), 16_KiB}); }), ErrorCode::io);
  io_->remove_directory(place_->root(), directory());
  io_->prepare_directory(place_->root(), place_->root(), false);  // the root itself stays
  io_->prepare_directory(place_->root(), directory(), false);
}

TEST_P(BlockIoConformance, a_sibling_keeps_the_shared_parent) {
  const std::string sibling = place_->root() + "/run/rank-1";
  io_->prepare_directory(place_->root(), sibling, false);
  io_->remove_directory(place_->root(), directory());
  io_->close(io_->open({sibling + "/data", 16_KiB}), true);
}

TEST_P(BlockIoConformance, a_directory_outside_its_root_is_refused) {
  EXPECT_EQ(code_of([&] { io_->prepare_directory(place_->root() + "/a", place_->root(), false); }),
            ErrorCode::invalid_argument);
}

TEST_P(BlockIoConformanceDeathTest, misaligned_requests_and_growing_writes_are_assertions) {
  const FileId file = io_->open({path(), 64_KiB});
  const IoAlignment alignment = io_->alignment(file);
  IoBuffer buffer(8_KiB);
  IoRequest request{.op = IoOp::write, .file = file, .data = buffer.data(), .size = 4_KiB};
  request.offset_bytes = 65536;
  EXPECT_DEATH(io_->submit({&request, 1}), "would grow");
  request.offset_bytes = 1;
  if (alignment.offset > Bytes{1}) {
    EXPECT_DEATH(io_->submit({&request, 1}), "misaligned");
  }
  request.offset_bytes = 0;
  request.data = buffer.data() + 1;
  if (alignment.memory > Bytes{1}) {
    EXPECT_DEATH(io_->submit({&request, 1}), "misaligned");
  }
}

}  // namespace
}  // namespace strata::test
