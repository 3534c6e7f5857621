// The control plane of the TCP room: questions, splits, failures, and what it makes of peers that
// do not speak its language.
#include "tcp/control_plane.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <future>

#include "support/tcp_ranks.hpp"
#include "tcp/group.hpp"
#include "tcp/mesh.hpp"
#include "tcp/rendezvous.hpp"

namespace strata::test {
namespace {

using namespace std::chrono_literals;
using tcp::ControlPlane;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> bytes_with(std::uint32_t value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

// What every rank of the plane passes when rank r passes `values[r]`.
std::vector<std::byte> bytes_with_all(const std::vector<std::uint32_t>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST(TcpControlPlane, OneRankNeedsNobody) {
  const auto plane = ControlPlane::connect(tcp::Launch{}, 1s);
  EXPECT_EQ(plane->rank(), 0U);
  EXPECT_EQ(plane->size(), 1U);
  EXPECT_EQ(plane->host_size(), 1U);
  EXPECT_EQ(plane->call(ControlCall::exchange, bytes_with(7)), bytes_with(7));
  EXPECT_THAT(plane->ask_progress(1s), ElementsAre(0U));
  EXPECT_EQ(plane->split(3, 3)->size(), 1U);
}

TEST(TcpControlPlane, TellsTheProgressOfEveryRank) {
  on_planes(3, [](ControlPlane& plane) {
    plane.set_progress(100 + plane.rank());
    plane.call(ControlCall::exchange, {});
    EXPECT_THAT(plane.ask_progress(60s), ElementsAre(100U, 101U, 102U));
    plane.call(ControlCall::exchange, {});
  });
}

TEST(TcpControlPlane, ProgressIsAskedForAfterAFailureToo) {
  std::atomic<int> met = 0;
  std::atomic<int> answered = 0;
  on_planes(3, [&](ControlPlane& plane) {
    plane.set_progress(5 + plane.rank());
    plane.call(ControlCall::exchange, {});
    // Whoever gives up ends the exchange of a rank that is still in it.
    ++met;
    while (met < 3) std::this_thread::yield();
    if (plane.rank() == 2) return;  // says good-bye and does not answer
    plane.give_up("it is late");
    const auto progress = plane.ask_progress(60s);
    EXPECT_EQ(progress[plane.rank()], 5 + plane.rank());
    EXPECT_EQ(progress[1 - plane.rank()], 6 - plane.rank());
    ++answered;
    while (answered < 2) std::this_thread::yield();
  });
}

TEST(TcpControlPlane, SplitsOfSplitsWorkSideBySide) {
  on_planes(4, [](ControlPlane& world) {
    const std::uint32_t rank = world.rank();
    world.set_timeout(30s);
    const auto half = world.split(rank % 2, 4 - rank);
    ASSERT_EQ(half->size(), 2U);
    EXPECT_EQ(half->rank(), rank < 2 ? 1U : 0U) << "ordered by key";
    EXPECT_EQ(half->timeout(), 30s);
    const auto again = half->split(0, rank);
    const auto alone = again->split(rank, 0);
    for (std::uint32_t i = 0; i < 20; ++i) {
      EXPECT_EQ(alone->call(ControlCall::exchange, bytes_with(i)), bytes_with(i));
      EXPECT_EQ(again->call(ControlCall::exchange, bytes_with(rank)),
                bytes_with_all({rank % 2, 2 + rank % 2}));
      EXPECT_EQ(half->call(ControlCall::exchange, bytes_with(rank)),
                bytes_with_all({2 + rank % 2, rank % 2}));
      EXPECT_EQ(world.call(ControlCall::exchange, bytes_with(rank)), bytes_with_all({0, 1, 2, 3}));
    }
  });
}

TEST(TcpControlPlane, PartsOutliveTheWhole) {
  ThreadGather gather(3);
  on_threads(3, [&](std::uint32_t rank) {
    auto world = ControlPlane::connect(
        rank, 3, [&](std::span<const std::byte> mine) { return gather.gather(rank, mine); }, 60s);
    const auto part = world->split(0, 3 - rank);
    world.reset();
    for (std::uint32_t i = 0; i < 10; ++i) {
      EXPECT_EQ(part->call(ControlCall::exchange, bytes_with(rank)), bytes_with_all({2, 1, 0}));
    }
    EXPECT_FALSE(part->failure());
  });
}

TEST(TcpControlPlane, AFailureIsToldToIdleRanksOnce) {
  on_planes(3, [](ControlPlane& plane) {
    std::promise<std::string> told;
    std::atomic<int> times = 0;
    plane.on_failure([&](const Error& error) {
      if (++times == 1) told.set_value(error.what());
    });
    plane.call(ControlCall::exchange, {});
    if (plane.rank() == 1) plane.give_up("the disk is full");
    EXPECT_THAT(told.get_future().get(),
                HasSubstr(plane.rank() == 1 ? "this rank gave up: the disk is full"
                                            : "rank 1 gave up: the disk is full"));
    ASSERT_TRUE(plane.failure().has_value());
    const Error again = error_of([&] { plane.call(ControlCall::exchange, {}); });
    EXPECT_STREQ(again.what(), plane.failure()->what());
    EXPECT_EQ(times, 1);
  });
}

TEST(TcpControlPlane, AFunctionThatComesLateRunsAtOnce) {
  const auto plane = ControlPlane::connect(tcp::Launch{}, 1s);
  plane->give_up("nothing to do");
  std::string told;
  plane->on_failure([&](const Error& error) { told = error.what(); });
  EXPECT_THAT(told, HasSubstr("nothing to do"));
}

TEST(TcpControlPlane, AFunctionMayGiveUpItself) {
  on_planes(2, [](ControlPlane& plane) {
    std::promise<void> told;
    plane.on_failure([&](const Error& error) {
      plane.give_up(error.what());
      told.set_value();
    });
    plane.call(ControlCall::exchange, {});
    if (plane.rank() == 0) plane.give_up("first");
    told.get_future().wait();
    EXPECT_THAT(plane.failure()->what(), HasSubstr("gave up: first"));
  });
}

TEST(TcpControlPlane, LauncherNumbersTheRanksOfAHost) {
  const std::uint16_t port = free_port();
  on_threads(3, [&](std::uint32_t rank) {
    tcp::Launch launch = launch_of(rank, 3, port);
    launch.host_rank = 2 - rank;
    const auto plane = ControlPlane::connect(launch, 60s);
    EXPECT_EQ(plane->host_rank(), Rank{2 - rank});
    EXPECT_EQ(plane->host_size(), 3U);
    const auto part = plane->split(rank == 1 ? 1 : 0, 0);
    EXPECT_EQ(part->host_rank(), Rank{rank == 0 ? 1U : 0U});
  });
}

TEST(TcpControlPlane, LongNoticesAreCut) {
  on_planes(2, [](ControlPlane& plane) {
    if (plane.rank() == 0) plane.give_up(std::string(100'000, 'x'));
    const Error error = error_of([&] { plane.call(ControlCall::exchange, {}); });
    EXPECT_TRUE(plane.rank() == 0 || std::strlen(error.what()) < 3000) << error.what();
  });
}

// A mesh of two whose rank 1 is the test itself.
class TcpMesh : public testing::Test {
 public:
  ~TcpMesh() override { group_->close(); }

 protected:
  TcpMesh() {
    std::uint16_t port = 0;
    const Descriptor listener = listen_at(port);
    peer_ = connect_to(port);
    const int ours = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    std::vector<tcp::Contact> contacts = {tcp::introduce(0, 2, {}, 1), tcp::introduce(1, 2, {}, 1)};
    mesh_ = std::make_unique<tcp::Mesh>(0, std::move(contacts), std::vector{-1, ours});
    group_ = mesh_->open_group(1, {0, 1});
  }

  void send(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  static tcp::FrameHeader header_of(tcp::FrameKind kind, std::uint64_t group,
                                    std::uint64_t size_bytes) {
    tcp::FrameHeader header;
    header.kind = static_cast<std::uint32_t>(kind);
    header.group = group;
    header.size_bytes = size_bytes;
    return header;
  }

  void send(tcp::FrameKind kind, std::uint64_t group, std::uint64_t size_bytes) {
    send(tcp::bytes_of(header_of(kind, group, size_bytes)));
  }

  std::string failure() {
    return error_of([&] { group_->call(ControlCall::exchange, {}); }).what();
  }

  Descriptor peer_;
  std::unique_ptr<tcp::Mesh> mesh_;
  std::shared_ptr<tcp::Group> group_;
};

TEST_F(TcpMesh, NoiseIsAnError) {
  const std::vector<std::byte> noise(4096, std::byte{'x'});
  send(noise);
  EXPECT_THAT(failure(), HasSubstr("rank 1 (pid"));
  EXPECT_THAT(failure(), HasSubstr("sent what is no control message"));
}

TEST_F(TcpMesh, AFrameThatIsTooLargeIsAnError) {
  send(tcp::FrameKind::call, 1, tcp::kMaxFrameBytes + 1);
  EXPECT_THAT(failure(), HasSubstr("sent what is no control message"));
}

TEST_F(TcpMesh, AFrameOfNoKindIsAnError) {
  send(static_cast<tcp::FrameKind>(9), 1, 0);
  EXPECT_THAT(failure(), HasSubstr("sent what is no control message"));
}

TEST_F(TcpMesh, AnswersAndNoticesThatAreTooShortAreErrors) {
  send(tcp::FrameKind::answer, 1, 3);
  send(std::vector<std::byte>(3));
  EXPECT_THAT(failure(), HasSubstr("that nobody asked for"));
}

TEST_F(TcpMesh, MoreCallsThanOneIsAheadAreAnError) {
  const std::vector frames(20, header_of(tcp::FrameKind::call, 1, 0));
  send(std::as_bytes(std::span(frames)));
  while (!group_->failure()) std::this_thread::yield();
  EXPECT_THAT(group_->failure()->what(), HasSubstr("that nobody asked for"));
}

TEST_F(TcpMesh, FramesOfGroupsThatNeverOpenAreBounded) {
  std::vector<tcp::FrameHeader> frames;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    frames.push_back(header_of(tcp::FrameKind::good_bye, 100 + i, 0));
  }
  send(std::as_bytes(std::span(frames)));
  EXPECT_THAT(failure(), HasSubstr("that nobody asked for"));
}

TEST_F(TcpMesh, ACallThatIsNoMessageDiverges) {
  send(tcp::FrameKind::call, 1, 5);
  send(std::vector<std::byte>(5));
  const Error error = error_of([&] { group_->call(ControlCall::split, {}); });
  EXPECT_EQ(error.code(), ErrorCode::diverged);
}

TEST_F(TcpMesh, HalfAFrameAndTheEndIsADeath) {
  send(std::vector<std::byte>(10));
  peer_.close();
  EXPECT_THAT(failure(), HasSubstr("closed its connection: it has died or was killed"));
}

TEST_F(TcpMesh, APeerThatDoesNotReadDelaysTheEndForAMomentOnly) {
  group_->set_timeout(50ms);
  const std::vector<std::byte> much(kMaxControlBytes);
  EXPECT_THAT(error_of([&] { group_->call(ControlCall::exchange, much); }).what(),
              HasSubstr("rank 1 did not arrive in exchange within 50 ms"));
  for (int i = 0; i < 500; ++i) EXPECT_THAT(group_->ask_progress(0ms), testing::SizeIs(2));
}

}  // namespace
}  // namespace strata::test
