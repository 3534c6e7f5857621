// The arithmetic of whole transfers and of who is next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <vector>

#include "files/request_queue.hpp"
#include "files/transfer.hpp"

namespace strata::test {
namespace {

using testing::ElementsAre;

// finish_transfer against a scripted kernel: each call answers the next number.
class Script {
 public:
  explicit Script(std::deque<std::int64_t> answers) : answers_(std::move(answers)) {}
  std::int64_t operator()(std::uint64_t done) {
    positions.push_back(done);
    if (answers_.empty()) {
      ADD_FAILURE() << "one call too many";
      return -EIO;
    }
    const std::int64_t answer = answers_.front();
    answers_.pop_front();
    return answer;
  }
  std::vector<std::uint64_t> positions;

 private:
  std::deque<std::int64_t> answers_;
};

struct Finished {
  std::int64_t result;
  std::vector<std::uint64_t> positions;
};

Finished finish(IoOp op, std::uint64_t size, std::uint64_t block,
                std::deque<std::int64_t> answers) {
  Script script(std::move(answers));
  files::Transfer transfer(op, Bytes{size}, Bytes{block});
  while (transfer.advance(script(transfer.done())) != files::Transfer::Next::finished) {
  }
  return {transfer.result(), script.positions};
}

TEST(Transfer, short_transfers_and_interruptions_are_finished) {
  for (const IoOp op : {IoOp::read, IoOp::write}) {
    const Finished whole = finish(op, 4096, 512, {4096});
    EXPECT_EQ(whole.result, 4096);
    const Finished parts = finish(op, 4096, 512, {512, -EINTR, 1024, -EAGAIN, 2560});
    EXPECT_EQ(parts.result, 4096);
    EXPECT_THAT(parts.positions, ElementsAre(0, 512, 512, 1536, 1536));
    const Finished bytewise = finish(op, 10, 1, {3, 6, 1});
    EXPECT_EQ(bytewise.result, 10);
    EXPECT_THAT(bytewise.positions, ElementsAre(0, 3, 9));
    EXPECT_EQ(finish(op, 0, 512, {0}).result, 0);
  }
}

TEST(Transfer, an_error_is_the_result_whatever_moved_before) {
  EXPECT_EQ(finish(IoOp::read, 4096, 512, {1024, -EIO}).result, -EIO);
  EXPECT_EQ(finish(IoOp::write, 4096, 512, {1024, -ENOSPC}).result, -ENOSPC);
}

TEST(Transfer, only_a_read_ends_at_the_end_of_the_file) {
  EXPECT_EQ(finish(IoOp::read, 4096, 512, {1024, 0}).result, 1024);
  EXPECT_EQ(finish(IoOp::read, 4096, 512, {700}).result, 700);
  EXPECT_EQ(finish(IoOp::write, 4096, 512, {1024, 0}).result, -EIO);
}

TEST(Transfer, a_write_that_stops_inside_a_block_repeats_the_block) {
  const Finished finished = finish(IoOp::write, 4096, 512, {700, 3584});
  EXPECT_EQ(finished.result, 4096);
  EXPECT_THAT(finished.positions, ElementsAre(0, 512));
}

TEST(Transfer, a_flush_is_done_when_the_kernel_says_so_and_not_before) {
  EXPECT_EQ(finish(IoOp::flush, 0, 512, {0}).result, 0);
  const Finished repeated = finish(IoOp::flush, 0, 512, {-EAGAIN, -EINTR, 0});
  EXPECT_EQ(repeated.result, 0);
  EXPECT_EQ(repeated.positions.size(), 3U);
  EXPECT_EQ(finish(IoOp::flush, 0, 512, {-EINTR, -EIO}).result, -EIO);
}

TEST(Transfer, what_never_moves_becomes_an_error) {
  for (const IoOp op : {IoOp::read, IoOp::write, IoOp::flush}) {
    for (const int errnum : {EAGAIN, EINTR}) {
      files::Transfer transfer(op, op == IoOp::flush ? 0_B : 4_KiB, 512_B);
      int tries = 1;
      while (transfer.advance(-errnum) == files::Transfer::Next::again_later) ++tries;
      EXPECT_EQ(transfer.result(), -errnum);
      EXPECT_EQ(tries, 10'000);
    }
  }
}

class RequestQueueTest : public testing::Test {
 protected:
  static IoRequest request(IoOp op, std::uint64_t priority, std::uint64_t tag) {
    return {.op = op, .priority = priority, .tag = tag};
  }
  static std::vector<std::uint64_t> start_all(files::RequestQueue& queue) {
    std::vector<std::uint64_t> tags;
    while (const auto next = queue.start_next()) tags.push_back(next->tag);
    return tags;
  }
};

TEST_F(RequestQueueTest, the_most_urgent_starts_and_among_equals_the_first) {
  files::RequestQueue queue({.requests = 9, .writes = 9});
  queue.push(request(IoOp::write, 2, 1));
  queue.push(request(IoOp::read, 2, 2));
  queue.push(request(IoOp::read, 1, 3));
  queue.push(request(IoOp::flush, 0, 4));
  queue.push(request(IoOp::read, 1, 5));
  EXPECT_THAT(start_all(queue), ElementsAre(4, 3, 5, 1, 2));
  EXPECT_EQ(queue.running(), 5U);
}

TEST_F(RequestQueueTest, no_more_run_than_the_depth) {
  files::RequestQueue queue({.requests = 2, .writes = 2});
  for (std::uint64_t tag = 0; tag < 4; ++tag) queue.push(request(IoOp::read, 0, tag));
  EXPECT_THAT(start_all(queue), ElementsAre(0, 1));
  EXPECT_FALSE(queue.can_start());
  queue.finish(IoOp::read);
  EXPECT_THAT(start_all(queue), ElementsAre(2));
}

// Urgent or not: what writes may not take is free for the read that comes.
TEST_F(RequestQueueTest, writes_leave_room_for_reads) {
  files::RequestQueue queue({.requests = 3, .writes = 1});
  for (std::uint64_t tag = 0; tag < 3; ++tag) queue.push(request(IoOp::write, 0, tag));
  EXPECT_THAT(start_all(queue), ElementsAre(0));
  for (std::uint64_t tag = 10; tag < 13; ++tag) queue.push(request(IoOp::read, 7, tag));
  EXPECT_THAT(start_all(queue), ElementsAre(10, 11));
  queue.finish(IoOp::read);
  EXPECT_THAT(start_all(queue), ElementsAre(12)) << "a write took the room of a read";
  queue.finish(IoOp::write);
  EXPECT_THAT(start_all(queue), ElementsAre(1));
}

}  // namespace
}  // namespace strata::test
