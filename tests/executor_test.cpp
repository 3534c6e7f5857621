// Tasks, groups, the executor's loop, workers and slab pools.
#include "engine/executor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/slab_pool.hpp"
#include "engine/worker_pool.hpp"
#include "strata/error.hpp"
#include "support/simulated_disk.hpp"
#include "support/test_machine.hpp"

namespace strata::test {
namespace {

using ::testing::ElementsAre;

SimulatedDisk::Options background_delivery() {
  SimulatedDisk::Options options;
  options.delivery = SimulatedDisk::Delivery::background;
  return options;
}

// An executor on its own thread, over a device and a disk that complete by themselves.
class ExecutorTest : public ::testing::Test {
 public:
  TestMachine machine{1};
  std::unique_ptr<Device> owned_device = machine.device(Rank{0}, 1_MiB);
  Device& device = *owned_device;
  SimulatedDisk disk{background_delivery()};
  WorkerPool workers{2};
  Executor executor{device, disk, workers};
  EngineThread thread{executor};  // last: ends before what it drives
};

Task<int> answer() { co_return 42; }

Task<int> nested(int depth) {
  if (depth == 0) co_return co_await answer();
  co_return co_await nested(depth - 1) + 1;
}

Task<> fail_with(std::string what) {
  throw std::runtime_error(what);
  co_return;
}

TEST_F(ExecutorTest, RunsNestedTasksToTheirValue) {
  EXPECT_EQ(executor.run_blocking(answer()), 42);
  EXPECT_EQ(executor.run_blocking(nested(100)), 142);
}

Task<std::unique_ptr<int>> move_only() { co_return std::make_unique<int>(7); }

TEST_F(ExecutorTest, ValuesMayBeMoveOnly) { EXPECT_EQ(*executor.run_blocking(move_only()), 7); }

Task<std::string> catch_inside() {
  try {
    co_await fail_with("inner");
  } catch (const std::runtime_error& error) {
    co_return std::string("caught ") + error.what();
  }
  co_return "missed";
}

TEST_F(ExecutorTest, ExceptionsSurfaceAtTheAwait) {
  EXPECT_EQ(executor.run_blocking(catch_inside()), "caught inner");
  try {
    executor.run_blocking(fail_with("outer"));
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "outer");
  }
  EXPECT_EQ(executor.run_blocking(answer()), 42) << "the loop did not survive an exception";
}

Task<std::thread::id> loop_thread() { co_return std::this_thread::get_id(); }

TEST_F(ExecutorTest, TasksRunOnTheLoopsThreadAndWorkDoesNot) {
  const auto loop = executor.run_blocking(loop_thread());
  EXPECT_NE(loop, std::this_thread::get_id());
  const auto [before, worker, after] =
      executor.run_blocking([](Executor& on) -> Task<std::array<std::thread::id, 3>> {
        std::array<std::thread::id, 3> ids;
        ids[0] = std::this_thread::get_id();
        co_await on.work({}, [&ids] { ids[1] = std::this_thread::get_id(); });
        ids[2] = std::this_thread::get_id();
        co_return ids;
      }(executor));
  EXPECT_EQ(before, loop);
  EXPECT_NE(worker, loop);
  EXPECT_EQ(after, loop);
}

Task<> append_after_work(Executor& on, std::vector<int>& done, int value) {
  std::atomic<int> computed = 0;
  co_await on.work({}, [&] { computed = value; });
  done.push_back(computed);
}

Task<> run_side_by_side(Executor& on, std::vector<int>& done, int count) {
  TaskGroup group;
  for (int i = 0; i < count; ++i) group.start(append_after_work(on, done, i));
  co_await group.join();
  EXPECT_TRUE(group.idle());
}

TEST_F(ExecutorTest, AGroupJoinsAllItsTasks) {
  std::vector<int> done;
  executor.run_blocking(run_side_by_side(executor, done, 200));
  std::ranges::sort(done);
  ASSERT_EQ(done.size(), 200U);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
}

Task<> fail_after_work(Executor& on, std::string what) {
  co_await on.work({}, [] {});
  throw std::runtime_error(what);
}

// The first error is told; the others have still run to their end before join() returns.
Task<std::string> join_failures(Executor& on, std::vector<int>& done) {
  TaskGroup group;
  group.start(fail_with("first"));
  group.start(fail_after_work(on, "second"));
  for (int i = 0; i < 10; ++i) group.start(append_after_work(on, done, i));
  std::string told;
  try {
    co_await group.join();
  } catch (const std::runtime_error& error) {
    told = error.what();
  }
  EXPECT_TRUE(group.idle());
  const std::exception_ptr again = co_await group.settle();
  EXPECT_EQ(again, nullptr) << "an error was told twice";
  co_return told;
}

TEST_F(ExecutorTest, AGroupTellsTheFirstErrorOnceAllHaveEnded) {
  std::vector<int> done;
  EXPECT_EQ(executor.run_blocking(join_failures(executor, done)), "first");
  EXPECT_EQ(done.size(), 10U);
}

TEST(TaskGroupDeathTest, OutlivesItsTasks) {
  struct Never {
    bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<>) {}
    void await_resume() {}
  };
  EXPECT_DEATH(
      {
        TaskGroup group;
        group.start([]() -> Task<> { co_await Never{}; }());
      },
      "a task group ends while its tasks run");
}

TEST_F(ExecutorTest, EventsResumeOnceTheDeviceHasRun) {
  const StreamId stream = device.create_stream("s");
  std::atomic<bool> ran = false;
  for (int i = 0; i < 100; ++i) {
    ran = false;
    device.launch(stream, [&] { ran = true; });
    const bool seen =
        executor.run_blocking([](Executor& on, Event event, std::atomic<bool>& flag) -> Task<bool> {
          co_await on.event(event);
          co_return flag.load();
        }(executor, device.record(stream), ran));
    ASSERT_TRUE(seen);
  }
}

struct Page {
  alignas(4096) std::array<std::byte, 4096> bytes{};
};

Task<std::int64_t> transfer(Executor& on, IoRequest request) { co_return co_await on.io(request); }

Task<> write_page(Executor& on, FileId file, std::vector<Page>& pages, std::size_t i) {
  const std::int64_t result = co_await on.io({.op = IoOp::write,
                                              .file = file,
                                              .offset_bytes = i * 4096,
                                              .data = pages[i].bytes.data(),
                                              .size = 4096_B});
  EXPECT_EQ(result, 4096);
}

Task<> write_pages(Executor& on, FileId file, std::vector<Page>& pages) {
  TaskGroup writes;
  for (std::size_t i = 0; i < pages.size(); ++i) writes.start(write_page(on, file, pages, i));
  co_await writes.join();
}

class ExecutorIoTest : public ExecutorTest {
 protected:
  FileId open_file(std::uint64_t pages) {
    disk.prepare_directory("/d", "/d/run", false);
    return disk.open({"/d/run/file", Bytes{pages * 4096}});
  }
};

TEST_F(ExecutorIoTest, ManyTransfersCompleteInAnyOrder) {
  const FileId file = open_file(100);
  std::vector<Page> pages(100);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i].bytes.fill(static_cast<std::byte>(i + 1));
  }
  executor.run_blocking(write_pages(executor, file, pages));
  const auto content = disk.store()->find("/d/run/file")->bytes();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    ASSERT_EQ(content[i * 4096 + i], static_cast<std::byte>(i + 1)) << "page " << i;
  }
}

TEST_F(ExecutorIoTest, ResultsAreHandedOnAsTheyAre) {
  const FileId file = open_file(2);
  Page page;
  const IoRequest read{.op = IoOp::read, .file = file, .data = page.bytes.data(), .size = 4096_B};
  disk.fail(Fault::io_error);
  EXPECT_EQ(executor.run_blocking(transfer(executor, read)), -EIO);
  disk.store()->find("/d/run/file")->resize(1024_B);
  EXPECT_EQ(executor.run_blocking(transfer(executor, read)), 1024) << "end of file";
}

TEST_F(ExecutorTest, ManyCallersBlockAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<int> sum = 0;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) sum += executor.run_blocking(nested(i % 3));
    });
  }
  for (std::thread& caller : callers) caller.join();
  // 42, 43 and 44 in turn, 34 + 33 + 33 times, by each of four callers.
  EXPECT_EQ(sum, 4 * (34 * 42 + 33 * 43 + 33 * 44));
}

TEST_F(ExecutorTest, StartedTasksRunInTheOrderOfTheCalls) {
  TaskGroup group;
  std::vector<int> order;
  const auto append = [](std::vector<int>& to, int value) -> Task<> {
    to.push_back(value);
    co_return;
  };
  for (int i = 0; i < 50; ++i) executor.start(group, append(order, i));
  executor.run_blocking([](TaskGroup& all) -> Task<> { co_await all.join(); }(group));
  ASSERT_EQ(order.size(), 50U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

// --- Slab pools, on a loop that the test itself drives ---

class SlabPoolTest : public ::testing::Test {
 protected:
  // The streams and workers are threads, which a plain fork() would lose.
  SlabPoolTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  static constexpr std::size_t kSlabs = 4;

  // Starts a task that takes `count` slabs into `to` and says so in `order_`.
  void take(std::size_t count, SlabSet& to, int name) {
    group_.start([](SlabPoolTest& test, std::size_t n, SlabSet& set, int id) -> Task<> {
      set = co_await test.pool_.acquire(n);
      test.order_.push_back(id);
    }(*this, count, to, name));
    run();
  }
  void run() {
    while (executor_.run_once()) {
    }
  }

  TestMachine machine_{1};
  std::unique_ptr<Device> device_ = machine_.device(Rank{0}, 1_MiB);
  SimulatedDisk disk_;
  WorkerPool workers_{1};
  Executor executor_{*device_, disk_, workers_};
  Budget budget_{Tier::host, Bytes{kSlabs * 1024}};
  Reservation reservation_{budget_, "slabs", Bytes{kSlabs * 1024}};
  std::vector<std::byte> memory_ = std::vector<std::byte>(kSlabs * 1024);
  SlabPool pool_{executor_, reservation_, [this] {
                   std::vector<std::span<std::byte>> slabs;
                   for (std::size_t i = 0; i < kSlabs; ++i) {
                     slabs.push_back(std::span(memory_).subspan(i * 1024, 1024));
                   }
                   return slabs;
                 }()};
  TaskGroup group_;
  std::vector<int> order_;
};

TEST_F(SlabPoolTest, LendsDistinctSlabsAndChargesThem) {
  SlabSet a, b;
  take(3, a, 1);
  take(1, b, 2);
  EXPECT_EQ(pool_.free(), 0U);
  EXPECT_EQ(budget_.in_use(), Bytes{4096});
  std::vector<const std::byte*> starts{a[0].data(), a[1].data(), a[2].data(), b[0].data()};
  std::ranges::sort(starts);
  for (std::size_t i = 0; i < kSlabs; ++i) EXPECT_EQ(starts[i], memory_.data() + i * 1024);
  a = SlabSet{};
  EXPECT_EQ(pool_.free(), 3U);
  EXPECT_EQ(budget_.in_use(), 1024_B);
  EXPECT_EQ(budget_.peak_in_use(), 4096_B);
  EXPECT_DEATH(static_cast<void>(b[1]), "a slab outside its set");
}

TEST_F(SlabPoolTest, ServesInTheOrderOfAsking) {
  SlabSet held, large, small, none;
  take(2, held, 0);
  take(3, large, 1);  // waits: two are free
  take(1, small, 2);  // would fit, and waits behind
  take(0, none, 3);   // so does one that wants nothing
  EXPECT_THAT(order_, ElementsAre(0));
  EXPECT_EQ(pool_.free(), 2U);
  held = SlabSet{};
  run();
  EXPECT_THAT(order_, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(large.size(), 3U);
  EXPECT_EQ(small.size(), 1U);
  EXPECT_EQ(none.size(), 0U);
}

TEST_F(SlabPoolTest, NobodyGetsAPartOfWhatItAsked) {
  SlabSet first, second, waiting;
  take(2, first, 0);
  take(2, second, 1);
  take(4, waiting, 2);
  first = SlabSet{};
  run();
  EXPECT_THAT(order_, ElementsAre(0, 1));
  EXPECT_EQ(pool_.free(), 2U);
  second = SlabSet{};
  run();
  EXPECT_THAT(order_, ElementsAre(0, 1, 2));
  EXPECT_EQ(pool_.free(), 0U);
}

TEST_F(SlabPoolTest, AMovedSetGivesBackOnce) {
  SlabSet a;
  take(2, a, 0);
  {
    SlabSet b = std::move(a);
    EXPECT_EQ(b.size(), 2U);
    EXPECT_EQ(pool_.free(), 2U);
  }
  EXPECT_EQ(pool_.free(), 4U);
  EXPECT_EQ(budget_.in_use(), 0_B);
}

TEST_F(SlabPoolTest, AskingForMoreThanThereIsIsAMistake) {
  SlabSet set;
  EXPECT_DEATH(take(5, set, 0), "5 slabs asked of a pool of 4");
}

TEST_F(ExecutorTest, PausesEndInOrderOfTheirTimes) {
  std::vector<int> order;
  TaskGroup group;
  const auto pause = [&](int id, std::int64_t duration_ns) -> Task<> {
    co_await executor.pause(duration_ns);
    order.push_back(id);
  };
  const auto all = [&]() -> Task<> {
    group.start(pause(1, 30'000'000));
    group.start(pause(2, 10'000'000));
    group.start(pause(3, 0));
    co_await group.join();
  };
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  executor.run_blocking(all());
  EXPECT_GE(clock.now_ns() - begin_ns, 30'000'000);
  EXPECT_THAT(order, ElementsAre(3, 2, 1));
}

struct WithFrames {
  FramePool& frames() { return pool; }
  Task<int> value(int x) { co_return x; }
  FramePool pool;
};

TEST(FramePool, ServesTheCoroutinesOfItsOwner) {
  WithFrames owner;
  const Task<int> task = owner.value(1);
  EXPECT_EQ(task.frame_pool(), &owner.pool);
}

TEST(FramePool, KeepsFramesForTheNextOfAboutTheirSize) {
  FramePool pool;
  void* const first = FramePool::allocate(200, &pool);
  void* const beside = FramePool::allocate(200, &pool);
  EXPECT_NE(beside, first);
  FramePool::release(first);
  EXPECT_EQ(FramePool::allocate(210, &pool), first);
  FramePool::release(first);
  FramePool::release(beside);
}

TEST(FramePool, OtherCoroutinesUseTheHeap) {
  const Task<int> task = answer();
  EXPECT_EQ(task.frame_pool(), nullptr);
}

TEST(FramePool, LargeAndMisfitSizesAreRoundedAndNotMixedUp) {
  FramePool pool;
  std::vector<std::pair<void*, std::size_t>> frames;
  for (std::size_t size = 1; size < 10'000; size += 97) {
    void* frame = FramePool::allocate(size, &pool);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame) % alignof(std::max_align_t), 0U);
    std::memset(frame, static_cast<int>(size % 251), size);
    frames.emplace_back(frame, size);
  }
  for (const auto& [frame, size] : frames) {
    const auto* bytes = static_cast<const unsigned char*>(frame);
    EXPECT_EQ(bytes[0], size % 251);
    EXPECT_EQ(bytes[size - 1], size % 251);
    FramePool::release(frame);
  }
}

TEST(FramePoolDeathTest, OutlivesItsFrames) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<FramePool>();
        void* frame = FramePool::allocate(64, pool.get());
        pool.reset();
        FramePool::release(frame);
      },
      "ends before its frames");
}

}  // namespace
}  // namespace strata::test
