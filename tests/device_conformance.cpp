#include "device_conformance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "base/rng.hpp"
#include "strata/element_ops.hpp"

namespace strata::test {

// Each program runs the instances that it links.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

void DeviceConformance::SetUp() {
  const std::string missing = GetParam().missing();
  if (!missing.empty()) GTEST_SKIP() << missing;
  device_ = GetParam().make(kArena);
}

void DeviceConformance::TearDown() {
  if (!device_) return;
  device_->close();
  uploads_.clear();
  for (const std::string& violation : GetParam().violations(*device_)) {
    ADD_FAILURE() << violation;
  }
}

std::span<std::byte> DeviceConformance::take(std::size_t size_bytes) {
  const auto memory = device_->arena().subspan(taken_, size_bytes);
  taken_ += round_up(size_bytes, 256);
  device_->note_lease(memory);
  return memory;
}

std::vector<std::byte> DeviceConformance::download(StreamId stream,
                                                   std::span<const std::byte> data) {
  Pinned bytes(*device_, std::vector<std::byte>(data.size()));
  device_->copy(stream, bytes.data(), data.data(), Bytes{data.size()}, CopyKind::device_to_host);
  finish(stream);
  return bytes.copy();
}

void DeviceConformance::upload(StreamId stream, std::span<std::byte> to,
                               std::span<const std::byte> bytes) {
  Pinned& pinned = uploads_.emplace_back(*device_, std::vector(bytes.begin(), bytes.end()));
  device_->copy(stream, to.data(), pinned.data(), Bytes{bytes.size()}, CopyKind::host_to_device);
}

namespace {

std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(rng::at(seed, i));
  return bytes;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Opens once. A launched function that stands at a gate keeps its stream busy for sure.
class Latch {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

std::vector<float> random_floats(std::uint64_t seed, std::size_t count, double scale) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((rng::uniform(seed, i) - 0.5) * scale);
  }
  return values;
}

TEST_P(DeviceConformance, ArenaHasTheExactSizeAndAlignment) {
  EXPECT_EQ(device_->arena().size(), kArena.value);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device_->arena().data()) % 256, 0U);
  EXPECT_FALSE(device_->name().empty());
}

TEST_P(DeviceConformance, StreamsHaveDifferentIds) {
  const StreamId a = device_->create_stream("a");
  const StreamId b = device_->create_stream("b");
  EXPECT_NE(a, b);
}

TEST_P(DeviceConformance, CopiesEverySizeToTheByte) {
  const StreamId stream = device_->create_stream("copy");
  for (const std::size_t size : {0, 1, 3, 255, 256, 4097, 65537}) {
    SCOPED_TRACE(fmt::format("{} bytes", size));
    const auto from = take(size + 2);
    const auto to = take(size + 2);
    const auto sent = random_bytes(size, size);
    const std::vector<std::byte> border(size + 2, std::byte{0x5A});
    upload(stream, from, border);
    upload(stream, to, border);
    upload(stream, from.subspan(1, size), sent);
    device_->copy(stream, to.data() + 1, from.data() + 1, Bytes{size}, CopyKind::device_to_device);
    const auto got = download(stream, to);
    EXPECT_EQ(got.front(), std::byte{0x5A});
    EXPECT_EQ(got.back(), std::byte{0x5A});
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), got.begin() + 1));
  }
}

TEST_P(DeviceConformance, ZeroClearsExactlyItsRange) {
  const StreamId stream = device_->create_stream("zero");
  const auto memory = take(1000);
  const auto sent = std::vector<std::byte>(1000, std::byte{7});
  upload(stream, memory, sent);
  device_->zero(stream, memory.data() + 1, 997_B);
  device_->zero(stream, memory.data(), 0_B);
  const auto got = download(stream, memory);
  EXPECT_EQ(got[0], std::byte{7});
  EXPECT_EQ(std::count(got.begin() + 1, got.end() - 2, std::byte{0}), 997);
  EXPECT_EQ(got[998], std::byte{7});
  EXPECT_EQ(got[999], std::byte{7});
}

TEST_P(DeviceConformance, OneStreamRunsInTheOrderOfTheCalls) {
  const StreamId stream = device_->create_stream("order");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    device_->launch(stream, [&order, i] { order.push_back(i); });
  }
  finish(stream);
  ASSERT_EQ(order.size(), 1000U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_P(DeviceConformance, EnqueueingDoesNotWaitForTheWork) {
  const StreamId stream = device_->create_stream("blocked");
  const auto memory = take(64);
  const auto sent = random_bytes(1, 64);
  Latch gate;
  device_->launch(stream, [&gate] { gate.pass(); });
  upload(stream, memory, sent);
  const Event event = device_->record(stream);
  EXPECT_FALSE(device_->done(event));
  gate.open();
  device_->synchronize(event);
  EXPECT_TRUE(device_->done(event));
  EXPECT_EQ(download(stream, memory), sent);
}

TEST_P(DeviceConformance, WaitOrdersTwoStreams) {
  const StreamId writer = device_->create_stream("writer");
  const StreamId reader = device_->create_stream("reader");
  const auto memory = take(4096);
  const auto copy = take(4096);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const auto sent = random_bytes(round, 4096);
    upload(writer, memory, sent);
    device_->wait(reader, device_->record(writer));
    device_->copy(reader, copy.data(), memory.data(), 4096_B, CopyKind::device_to_device);
    ASSERT_EQ(download(reader, copy), sent);
  }
}

TEST_P(DeviceConformance, WaitHoldsBackOnlyItsOwnStream) {
  const StreamId blocked = device_->create_stream("blocked");
  const StreamId waiting = device_->create_stream("waiting");
  const StreamId free = device_->create_stream("free");
  Latch gate;
  std::atomic<bool> ran{false};
  device_->launch(blocked, [&gate] { gate.pass(); });
  device_->wait(waiting, device_->record(blocked));
  device_->launch(waiting, [&ran] { ran = true; });
  const Event last = device_->record(waiting);
  finish(free);
  EXPECT_FALSE(ran);
  gate.open();
  device_->synchronize(last);
  EXPECT_TRUE(ran);
}

TEST_P(DeviceConformance, WaitOnAFiredEventIsFree) {
  const StreamId a = device_->create_stream("a");
  const StreamId b = device_->create_stream("b");
  const Event event = device_->record(a);
  device_->synchronize(event);
  device_->wait(b, event);
  device_->wait(a, event);
  finish(b);
  finish(a);
}

TEST_P(DeviceConformance, EventsOfOneStreamFireInOrder) {
  const StreamId stream = device_->create_stream("events");
  std::vector<Event> events;
  for (int i = 0; i < 100; ++i) events.push_back(device_->record(stream));
  device_->synchronize(events[60]);
  for (int i = 0; i <= 60; ++i) EXPECT_TRUE(device_->done(events[i])) << i;
}

TEST_P(DeviceConformance, HandlesStayDistinctAndOldOnesReadAsDone) {
  const StreamId stream = device_->create_stream("recycle");
  std::vector<Event> old;
  for (int i = 0; i < 200; ++i) {
    const Event event = device_->record(stream);
    EXPECT_TRUE(event.recorded());
    for (const Event& other : old) ASSERT_NE(event, other);
    device_->synchronize(event);
    old.push_back(event);
  }
  Latch gate;
  device_->launch(stream, [&gate] { gate.pass(); });
  const Event pending = device_->record(stream);
  for (const Event& event : old) {
    EXPECT_TRUE(device_->done(event));
    device_->synchronize(event);
  }
  EXPECT_FALSE(device_->done(pending));
  gate.open();
  device_->synchronize(pending);
}

TEST_P(DeviceConformance, PollingAloneMakesProgress) {
  const StreamId a = device_->create_stream("a");
  const StreamId b = device_->create_stream("b");
  std::atomic<int> ran{0};
  device_->launch(a, [&ran] { ++ran; });
  device_->wait(b, device_->record(a));
  device_->launch(b, [&ran] { ++ran; });
  const Event event = device_->record(b);
  while (!device_->done(event)) std::this_thread::yield();
  EXPECT_EQ(ran, 2);
}

TEST_P(DeviceConformance, NotifyCallsOnceAfterTheEvent) {
  const StreamId stream = device_->create_stream("notify");
  Latch gate;
  std::atomic<bool> ran{false};
  std::atomic<int> calls{0};
  std::promise<bool> ran_before;
  device_->launch(stream, [&gate] { gate.pass(); });
  device_->launch(stream, [&ran] { ran = true; });
  device_->notify(device_->record(stream), [&] {
    ++calls;
    ran_before.set_value(ran);
  });
  EXPECT_EQ(calls, 0);
  gate.open();
  EXPECT_TRUE(ran_before.get_future().get());
  device_->close();
  EXPECT_EQ(calls, 1);
}

TEST_P(DeviceConformance, NotifyOfAFiredEventCallsAtOnce) {
  const StreamId stream = device_->create_stream("notify");
  const Event event = device_->record(stream);
  device_->synchronize(event);
  const auto caller = std::this_thread::get_id();
  std::thread::id called_by;
  device_->notify(event, [&called_by] { called_by = std::this_thread::get_id(); });
  EXPECT_EQ(called_by, caller);
}

TEST_P(DeviceConformance, EveryCallbackOfAnEventRuns) {
  const StreamId stream = device_->create_stream("notify");
  Latch gate;
  std::atomic<int> calls{0};
  device_->launch(stream, [&gate] { gate.pass(); });
  const Event event = device_->record(stream);
  for (int i = 0; i < 10; ++i) device_->notify(event, [&calls] { ++calls; });
  gate.open();
  device_->close();
  EXPECT_EQ(calls, 10);
}

TEST_P(DeviceConformance, LongChainsAcrossManyStreamsFinish) {
  constexpr int kStreams = 8;
  constexpr int kRounds = 50;
  std::vector<StreamId> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(device_->create_stream(fmt::format("chain {}", i)));
  }
  std::vector<int> order;  // only the chain itself orders the pushes
  Event last = device_->record(streams[0]);
  for (int i = 0; i < kStreams * kRounds; ++i) {
    const StreamId stream = streams[static_cast<std::size_t>(i * 5 % kStreams)];
    device_->wait(stream, last);
    device_->launch(stream, [&order, i] { order.push_back(i); });
    last = device_->record(stream);
  }
  device_->synchronize(last);
  ASSERT_EQ(order.size(), static_cast<std::size_t>(kStreams * kRounds));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_P(DeviceConformance, LaunchedFunctionsOfTwoStreamsMayMeet) {
  if (!device_->host_addressable()) GTEST_SKIP() << "a GPU may run them one at a time";
  const StreamId a = device_->create_stream("a");
  const StreamId b = device_->create_stream("b");
  Latch first;
  Latch second;
  device_->launch(a, [&] {
    first.open();
    second.pass();
  });
  device_->launch(b, [&] {
    first.pass();
    second.open();
  });
  // Only one of the two is asked for at first; the other must not wait for that.
  finish(a);
  finish(b);
}

TEST_P(DeviceConformance, CloseRunsPendingWork) {
  const StreamId a = device_->create_stream("a");
  const StreamId b = device_->create_stream("b");
  std::atomic<int> ran{0};
  for (int i = 0; i < 50; ++i) {
    device_->launch(a, [&ran] { ++ran; });
    device_->wait(b, device_->record(a));
    device_->launch(b, [&ran] { ++ran; });
  }
  const Event last = device_->record(b);
  device_->close();
  EXPECT_EQ(ran, 100);
  EXPECT_TRUE(device_->done(last));
  device_->close();
}

TEST_P(DeviceConformance, CapturedStateDiesWithItsWork) {
  const StreamId stream = device_->create_stream("capture");
  auto token = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = token;
  device_->launch(stream, [token = std::move(token)] {});
  finish(stream);
  EXPECT_TRUE(watch.expired());
}

TEST_P(DeviceConformance, BusySecondsCountWorkAndNotWaiting) {
  const StreamId working = device_->create_stream("working");
  const StreamId waiting = device_->create_stream("waiting");
  const auto spin = std::chrono::milliseconds(5);
  device_->launch(working, [spin] {
    const auto end = std::chrono::steady_clock::now() + spin;
    while (std::chrono::steady_clock::now() < end) {
    }
  });
  device_->wait(waiting, device_->record(working));
  finish(waiting);
  EXPECT_GE(device_->busy_seconds(working), 0.005);
  EXPECT_LT(device_->busy_seconds(waiting), 0.005);
}

TEST_P(DeviceConformance, HostMemoryMayBeRegisteredAgain) {
  const StreamId stream = device_->create_stream("pinned");
  const auto sent = random_bytes(3, 8192);
  std::vector<std::byte> host = sent;
  const auto memory = take(8192);
  for (int round = 0; round < 3; ++round) {
    device_->register_host(host);
    device_->copy(stream, memory.data(), host.data(), 8192_B, CopyKind::host_to_device);
    EXPECT_EQ(download(stream, memory), sent);
    device_->unregister_host(host);
  }
}

// Element ops: the same bits as run_on_host() on plain memory, which has its own tests.
TEST_P(DeviceConformance, AccumulateEqualsTheHost) {
  const StreamId stream = device_->create_stream("accumulate");
  for (const std::size_t count : {0, 1, 1001}) {
    const auto gradient = random_floats(count, count, 8);
    std::vector<float> expected(count);
    const auto device_gradient = take(count * 4);
    const auto accumulator = take(count * 4);
    upload(stream, device_gradient, bytes_of(gradient));
    for (const bool overwrite : {true, false}) {
      run_on_host(AccumulateOp{expected.data(), gradient.data(), DType::fp32, count, overwrite});
      device_->element_op(
          stream, AccumulateOp{reinterpret_cast<float*>(accumulator.data()), device_gradient.data(),
                               DType::fp32, count, overwrite});
    }
    EXPECT_EQ(values_of<float>(download(stream, accumulator)), expected);
  }
}

TEST_P(DeviceConformance, GradientStatsEqualTheHost) {
  const StreamId stream = device_->create_stream("stats");
  const std::size_t count = kBlockElems + 77;
  const auto gradient = random_floats(5, count, 2);
  std::vector<double> expected(2);
  std::uint32_t flag = 0;
  run_on_host(GradientStatsOp{gradient.data(), DType::fp32, count, expected.data(), &flag});

  const auto device_gradient = take(count * 4);
  const auto sums = take(2 * sizeof(double));
  const auto nonfinite = take(sizeof(std::uint32_t));
  upload(stream, device_gradient, bytes_of(gradient));
  device_->zero(stream, nonfinite.data(), Bytes{nonfinite.size()});
  device_->element_op(stream, GradientStatsOp{device_gradient.data(), DType::fp32, count,
                                              reinterpret_cast<double*>(sums.data()),
                                              reinterpret_cast<std::uint32_t*>(nonfinite.data())});
  EXPECT_EQ(values_of<double>(download(stream, sums)), expected);
  EXPECT_EQ(values_of<std::uint32_t>(download(stream, nonfinite)), std::vector<std::uint32_t>{0});
}

TEST_P(DeviceConformance, ConvertEqualsTheHost) {
  const StreamId stream = device_->create_stream("convert");
  const std::size_t count = 1003;
  const auto values = random_floats(9, count, 1000);
  const auto from = take(count * 4);
  upload(stream, from, bytes_of(values));
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    std::vector<std::byte> expected(count * size_of(dtype).value);
    run_on_host(ConvertOp{expected.data(), dtype, values.data(), DType::fp32, count});
    const auto to = take(expected.size());
    device_->element_op(stream, ConvertOp{to.data(), dtype, from.data(), DType::fp32, count});
    EXPECT_EQ(download(stream, to), expected) << name_of(dtype);
    // And back, which is exact.
    const auto back = take(count * 4);
    device_->element_op(stream, ConvertOp{back.data(), DType::fp32, to.data(), dtype, count});
    std::vector<float> widened(count);
    convert(widened.data(), DType::fp32, expected.data(), dtype, count);
    EXPECT_EQ(values_of<float>(download(stream, back)), widened) << name_of(dtype);
  }
}

TEST_P(DeviceConformance, NothingHasFailed) {
  finish(device_->create_stream("fine"));
  EXPECT_FALSE(device_->failure());
}

TEST_P(DeviceConformance, AdamWEqualsTheHostAndLeavesTheRest) {
  const StreamId stream = device_->create_stream("adamw");
  const std::size_t count = 513;
  const UpdateCoefficients coefficients{.step = 0.01F, .second_scale = 2};
  const std::vector<UpdateRun> runs = {{3, 100, coefficients}, {200, 313, coefficients}};
  const auto gradient = random_floats(1, count, 1);
  std::vector<std::vector<float>> states = {random_floats(2, count, 1), random_floats(3, count, 1),
                                            std::vector<float>(count, 0.25F)};
  std::vector<std::uint16_t> param(count, 0xABCD);

  const auto device_gradient = take(count * 4);
  const auto device_param = take(count * 2);
  upload(stream, device_gradient, bytes_of(gradient));
  upload(stream, device_param, bytes_of(param));
  std::vector<std::span<std::byte>> device_states;
  for (const auto& state : states) {
    device_states.push_back(take(count * 4));
    upload(stream, device_states.back(), bytes_of(state));
  }
  finish(stream);

  const auto make = [&](const void* g, void* w, void* m, void* v, void* p) {
    return UpdateOp{.gradient = g,
                    .gradient_dtype = DType::fp32,
                    .weights = w,
                    .moments = {m, v},
                    .param = p,
                    .count_elems = count,
                    .runs = runs};
  };
  run_on_host(
      make(gradient.data(), states[0].data(), states[1].data(), states[2].data(), param.data()));
  device_->element_op(stream,
                      make(device_gradient.data(), device_states[0].data(), device_states[1].data(),
                           device_states[2].data(), device_param.data()));
  for (std::size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ(values_of<float>(download(stream, device_states[i])), states[i]) << i;
  }
  EXPECT_EQ(values_of<std::uint16_t>(download(stream, device_param)), param);
}

TEST_P(DeviceConformance, DeathOnEventsThatWereNeverRecorded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const StreamId stream = device_->create_stream("death");
  const Event real = device_->record(stream);
  const Event newer{real.slot, real.generation + 1};
  const Event elsewhere{real.slot + 1000, 1};
  for (const Event& event : {Event{}, newer, elsewhere}) {
    EXPECT_DEATH(device_->wait(stream, event), "never recorded");
    EXPECT_DEATH(static_cast<void>(device_->done(event)), "never recorded");
    EXPECT_DEATH(device_->synchronize(event), "never recorded");
    EXPECT_DEATH(device_->notify(event, [] {}), "never recorded");
  }
}

TEST_P(DeviceConformance, DeathOnCopiesOutsideTheArena) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const StreamId stream = device_->create_stream("death");
  std::vector<std::byte> host(16);
  std::byte* const end = device_->arena().data() + device_->arena().size();
  EXPECT_DEATH(device_->copy(stream, host.data(), host.data(), 16_B, CopyKind::host_to_device),
               "outside the arena");
  EXPECT_DEATH(device_->copy(stream, host.data(), end - 15, 16_B, CopyKind::device_to_host),
               "outside the arena");
  EXPECT_DEATH(device_->zero(stream, end - 15, 16_B), "outside the arena");
}

}  // namespace
}  // namespace strata::test
