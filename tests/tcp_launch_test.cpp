// How ranks learn who they are and find each other, and what they are told when that fails.
#include <gmock/gmock.h>

#include <cstdlib>
#include <future>
#include <map>

#include "strata/communicator.hpp"
#include "support/tcp_ranks.hpp"
#include "tcp/launch.hpp"
#include "tcp/rendezvous.hpp"
#include "tcp/tcp_communicator.hpp"

namespace strata::test {
namespace {

using namespace std::chrono_literals;
using tcp::ControlPlane;
using tcp::Launch;
using tcp::launch_from_environment;
using testing::AllOf;
using testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

// The variables that matter are those given and no others, until the end of the test.
class TcpLaunch : public testing::Test {
 public:
  ~TcpLaunch() override { set(before_); }

 protected:
  TcpLaunch() {
    for (const char* name : kNames) {
      if (const char* value = std::getenv(name)) before_[name] = value;
    }
    set({});
  }

  static void set(const Environment& environment) {
    for (const char* name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  }

  // A good launch with some variables changed; an empty value removes one.
  static void set_but(const Environment& changes) {
    Environment environment = {{"RANK", "3"},           {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node"}, {"MASTER_PORT", "29500"}};
    for (const auto& [name, value] : changes) environment[name] = value;
    set(environment);
  }

  static void expect_refused(const Environment& changes, const std::string& name) {
    set_but(changes);
    const Error error = error_of([] { launch_from_environment(); });
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_THAT(error.what(), HasSubstr(name));
    if (!changes.at(name).empty()) {
      EXPECT_THAT(error.what(), HasSubstr(name + "=\"" + changes.at(name) + "\""));
    }
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }

 private:
  static constexpr std::array kNames = {
      "RANK",         "WORLD_SIZE",           "LOCAL_RANK",    "LOCAL_WORLD_SIZE",
      "MASTER_ADDR",  "MASTER_PORT",          "SLURM_PROCID",  "SLURM_NTASKS",
      "SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "TORCHELASTIC_USE_AGENT_STORE"};
  Environment before_;
};

TEST_F(TcpLaunch, ReadsWhatTorchrunSets) {
  set_but({});
  const Launch launch = launch_from_environment();
  EXPECT_EQ(launch.rank, 3U);
  EXPECT_EQ(launch.size, 8U);
  EXPECT_EQ(launch.host_rank, 1U);
  EXPECT_EQ(launch.host_size, 4U);
  EXPECT_EQ(launch.master_addr, "node");
  EXPECT_EQ(launch.master_port, 29500);
  EXPECT_TRUE(launched_by_environment());
}

TEST_F(TcpLaunch, LeavesThePortToTorchrunsAgentThatListensThere) {
  set_but({{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(launch_from_environment().master_port, 29501);
  set_but({{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"MASTER_PORT", "65535"}});
  EXPECT_EQ(launch_from_environment().master_port, 65534);
  set_but({{"TORCHELASTIC_USE_AGENT_STORE", "False"}});
  EXPECT_EQ(launch_from_environment().master_port, 29500);
}

TEST_F(TcpLaunch, ReadsWhatSlurmSets) {
  const Environment in_step = {{"SLURM_PROCID", "2"},    {"SLURM_NTASKS", "16"},
                               {"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_NUM_TASKS", "4"},
                               {"SLURM_LOCALID", "2"},   {"MASTER_ADDR", "node"},
                               {"MASTER_PORT", "29500"}};
  set(in_step);
  EXPECT_TRUE(launched_by_environment());
  const Launch launch = launch_from_environment();
  EXPECT_EQ(launch.rank, 2U);
  EXPECT_EQ(launch.size, 4U) << "the step's, not the job's";
  EXPECT_EQ(launch.host_rank, 2U);
  EXPECT_FALSE(launch.host_size.has_value());

  set({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"MASTER_ADDR", "n"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(launch_from_environment().size, 2U) << "set by hand";
}

TEST_F(TcpLaunch, ABatchScriptOfManyTasksIsOneProcess) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "1234"}});
  EXPECT_FALSE(launched_by_environment());
  EXPECT_THAT(error_of([] { launch_from_environment(); }).what(), HasSubstr("RANK is not set"));
}

TEST_F(TcpLaunch, TorchrunUnderSlurmCounts) {
  set_but({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(launch_from_environment().size, 8U);
}

TEST_F(TcpLaunch, OneRankNeedsNoMeetingPoint) {
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(launch_from_environment().size, 1U);
  EXPECT_FALSE(launched_by_environment());
  EXPECT_EQ(create_tcp_communicator(TcpOptions{})->size(), 1U);
}

TEST_F(TcpLaunch, NothingSetIsNoLaunch) {
  EXPECT_FALSE(launched_by_environment());
  EXPECT_THAT(error_of([] { create_tcp_communicator(TcpOptions{}); }).what(),
              AllOf(HasSubstr("RANK is not set"), HasSubstr("WORLD_SIZE"), HasSubstr("torchrun")));
}

TEST_F(TcpLaunch, EveryBadValueIsNamed) {
  for (const std::string value : {"", "three", "3x", "-1", " 3", "8", "99999999999999999999"}) {
    expect_refused({{"RANK", value}}, "RANK");
  }
  for (const std::string value : {"", "eight", "0", "-8", "70000", "8.0"}) {
    expect_refused({{"WORLD_SIZE", value}}, "WORLD_SIZE");
  }
  expect_refused({{"RANK", "3"}, {"WORLD_SIZE", "3"}}, "RANK");
}

TEST_F(TcpLaunch, EveryBadValueOfTheHostIsNamed) {
  for (const std::string value : {"one", "4", "-1"}) {
    expect_refused({{"LOCAL_RANK", value}}, "LOCAL_RANK");
  }
  for (const std::string value : {"four", "9", "0"}) {
    expect_refused({{"LOCAL_WORLD_SIZE", value}}, "LOCAL_WORLD_SIZE");
  }
}

TEST_F(TcpLaunch, EveryBadMeetingPointIsNamed) {
  for (const std::string value : {"", "http", "0", "65536", "29500 "}) {
    expect_refused({{"MASTER_PORT", value}}, "MASTER_PORT");
  }
  expect_refused({{"MASTER_ADDR", ""}}, "MASTER_ADDR");
  set_but({{"MASTER_ADDR", ""}});
  EXPECT_THAT(error_of([] { launch_from_environment(); }).what(), HasSubstr("scontrol"));
}

TEST_F(TcpLaunch, ASizeThatIsNoNumberIsALaunch) {
  set_but({{"WORLD_SIZE", "eight"}});
  EXPECT_TRUE(launched_by_environment()) << "so that it is refused and not trained alone";
}

// The error of each of the launches, which run at the same time.
std::vector<Error> errors_of(const std::vector<Launch>& launches,
                             std::chrono::milliseconds timeout) {
  std::vector<Error> errors(launches.size(), Error(ErrorCode::closed, "none"));
  on_threads(static_cast<std::uint32_t>(launches.size()), [&](std::uint32_t i) {
    errors[i] = error_of([&] { ControlPlane::connect(launches[i], timeout); });
  });
  return errors;
}

void expect_all_say(const std::vector<Error>& errors, ErrorCode code, const std::string& text) {
  for (const Error& error : errors) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
    EXPECT_STREQ(error.what(), errors.front().what()) << "the same on all ranks";
  }
}

TEST(TcpRendezvous, RanksMeetInAnyOrder) {
  const std::uint16_t port = free_port();
  on_threads(4, [&](std::uint32_t rank) {
    std::this_thread::sleep_for(rank == 0 ? 100ms : 0ms);
    const auto plane = ControlPlane::connect(launch_of(rank, 4, port), 60s);
    EXPECT_EQ(plane->rank(), rank);
    EXPECT_EQ(plane->size(), 4U);
    EXPECT_EQ(plane->host_rank(), Rank{rank});
    EXPECT_EQ(plane->host_size(), 4U);
  });
}

TEST(TcpRendezvous, RanksMeetAgainAtTheSamePort) {
  const std::uint16_t port = free_port();
  on_threads(3, [&](std::uint32_t rank) {
    for (int i = 0; i < 3; ++i) {
      const auto first = ControlPlane::connect(launch_of(rank, 3, port), 60s);
      const auto second = ControlPlane::connect(launch_of(rank, 3, port), 60s);
      first->call(ControlCall::exchange, {});
      second->call(ControlCall::exchange, {});
    }
  });
}

TEST(TcpRendezvous, TheSameRankTwiceIsToldToAll) {
  const std::uint16_t port = free_port();
  expect_all_say(
      errors_of({launch_of(0, 3, port), launch_of(1, 3, port), launch_of(1, 3, port)}, 60s),
      ErrorCode::config, "two processes were started as rank 1: pid ");
}

TEST(TcpRendezvous, DifferentSizesAreToldToAll) {
  const std::uint16_t port = free_port();
  const auto errors = errors_of({launch_of(0, 8, port), launch_of(3, 4, port)}, 60s);
  expect_all_say(errors, ErrorCode::config, "was started with WORLD_SIZE=4 and rank 0");
  EXPECT_THAT(errors[0].what(), AllOf(HasSubstr("rank 3 (pid"), HasSubstr("with 8")));
}

TEST(TcpRendezvous, RanksThatDoNotComeAreNamedToAll) {
  const std::uint16_t port = free_port();
  expect_all_say(
      errors_of({launch_of(0, 4, port), launch_of(2, 4, port)}, 400ms), ErrorCode::rank_lost,
      "ranks 1, 3 did not arrive at 127.0.0.1:" + std::to_string(port) + " within 400 ms");
}

TEST(TcpRendezvous, ARankThatLeavesAgainDidNotArrive) {
  const std::uint16_t port = free_port();
  std::thread deserter([&] {
    const Descriptor connection = connect_to(port);
    const tcp::Contact contact = tcp::introduce(1, 3, {}, 1);
    EXPECT_GT(::send(connection.get(), &contact, sizeof(contact), MSG_NOSIGNAL), 0);
  });
  const auto host = std::async(std::launch::async, [&] {
    return error_of([&] { ControlPlane::connect(launch_of(0, 3, port), 1s); });
  });
  deserter.join();
  std::this_thread::sleep_for(100ms);  // rank 0 reads that it left
  const Error error = error_of([&] { ControlPlane::connect(launch_of(2, 3, port), 1s); });
  EXPECT_THAT(error.what(), HasSubstr("rank 1 did not arrive"));
}

TEST(TcpRendezvous, APortThatIsTakenIsNamed) {
  std::uint16_t port = 0;
  const Descriptor other = listen_at(port);
  const Error error = error_of([&] { ControlPlane::connect(launch_of(0, 2, port), 60s); });
  EXPECT_EQ(error.code(), ErrorCode::config);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)),
                                  HasSubstr("MASTER_PORT"), HasSubstr("Address already in use")));
}

TEST(TcpRendezvous, StrangersDisturbNobody) {
  const std::uint16_t port = free_port();
  on_threads(4, [&](std::uint32_t thread) {
    if (thread < 2) {
      std::this_thread::sleep_for(thread == 1 ? 200ms : 0ms);
      const auto plane = ControlPlane::connect(launch_of(thread, 2, port), 60s);
      plane->call(ControlCall::exchange, {});
      return;
    }
    const Descriptor stranger = connect_to(port);
    const std::string request(thread == 2 ? 5000 : 3, 'G');
    EXPECT_GE(::send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    // One says too much, the other too little, and both stay.
    std::this_thread::sleep_for(400ms);
  });
}

TEST(TcpRendezvous, AHostThatNobodyKnowsIsNamed) {
  Launch launch = launch_of(1, 2, 29500);
  launch.master_addr = "no..such.host";  // refused without asking a name server
  const Error error = error_of([&] { ControlPlane::connect(launch, 100ms); });
  EXPECT_EQ(error.code(), ErrorCode::config);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("MASTER_ADDR=\"no..such.host\""), HasSubstr("100 ms")));
}

TEST(TcpRendezvous, ARankZeroThatNeverComesIsNamed) {
  const std::uint16_t port = free_port();
  const auto start = std::chrono::steady_clock::now();
  const Error error = error_of([&] { ControlPlane::connect(launch_of(1, 2, port), 300ms); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  EXPECT_EQ(error.code(), ErrorCode::rank_lost);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 could not reach rank 0 at 127.0.0.1:" +
                                            std::to_string(port) + " within 300 ms"),
                                  HasSubstr("Connection refused")));
}

TEST(TcpRendezvous, SomethingElseAtThePortIsNamed) {
  std::uint16_t port = 0;
  const Descriptor other = listen_at(port);
  std::thread server([&] {
    const Descriptor guest(::accept(other.get(), nullptr, nullptr));
    const std::string answer(200, '?');
    EXPECT_GT(::send(guest.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 0);
    char byte = 0;
    while (::recv(guest.get(), &byte, 1, 0) > 0) continue;
  });
  const Error error = error_of([&] { ControlPlane::connect(launch_of(1, 2, port), 10s); });
  server.join();
  EXPECT_EQ(error.code(), ErrorCode::config);
  EXPECT_THAT(error.what(), HasSubstr("is not rank 0 of this launch"));
}

TEST(TcpRendezvous, SomethingSilentAtThePortIsNamed) {
  std::uint16_t port = 0;
  const Descriptor other = listen_at(port);
  const Error error = error_of([&] { ControlPlane::connect(launch_of(1, 2, port), 200ms); });
  EXPECT_EQ(error.code(), ErrorCode::rank_lost);
  EXPECT_THAT(error.what(), HasSubstr("got no answer within 700 ms"));
}

TEST(TcpRendezvous, AnAllGatherOfTheCallersServesAsWell) {
  on_planes(3, [](ControlPlane& plane) {
    EXPECT_EQ(plane.size(), 3U);
    plane.call(ControlCall::exchange, {});
  });
}

TEST(TcpRendezvous, AnAllGatherThatBringsNonsenseIsAnError) {
  const auto connect = [](const tcp::AllGather& gather) {
    return error_of([&] { ControlPlane::connect(0, 2, gather, 1s); });
  };
  EXPECT_EQ(connect([](std::span<const std::byte>) { return std::vector<std::byte>(5); }).code(),
            ErrorCode::diverged);
  EXPECT_EQ(connect([](std::span<const std::byte> mine) {
              std::vector<std::byte> all(mine.begin(), mine.end());
              all.resize(2 * mine.size());
              return all;
            }).code(),
            ErrorCode::diverged);
}

}  // namespace
}  // namespace strata::test
