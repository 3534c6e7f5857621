// What survivors see when a rank dies or hangs: starts real ranks by mpirun and reads their lines.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

#include "mpi/peer_watch.hpp"

namespace strata::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// What the ranks wrote. --enable-recovery keeps mpirun from ending the survivors itself.
std::string output_of(const std::string& scenario, const std::string& transport, int ranks) {
  const std::string command = std::string(STRATA_MPIEXEC) +
                              " --allow-run-as-root --oversubscribe --bind-to none"
                              " --enable-recovery -n " +
                              std::to_string(ranks) + " " + STRATA_MPI_RANK_PROGRAM + " " +
                              scenario + " " + transport + " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 4096> piece;
  while (const std::size_t size = std::fread(piece.data(), 1, piece.size(), pipe)) {
    output.append(piece.data(), size);
  }
  ::pclose(pipe);
  return output;
}

class MpiRankLoss : public testing::TestWithParam<std::string> {};

// The process id tells, long before the timeout of 60 s: "NNN ms" has at most four digits.
TEST_P(MpiRankLoss, ADeathInACollectiveIsReportedFast) {
  const std::string output = output_of("killed_in_collective", GetParam(), 3);
  EXPECT_THAT(output, ContainsRegex("rank 0: rank_lost after [0-9]{1,4} ms: .*rank 2"));
  EXPECT_THAT(output, ContainsRegex("rank 1: rank_lost after [0-9]{1,4} ms: .*rank 2"));
}

TEST_P(MpiRankLoss, ADeathInAnExchangeIsReportedFast) {
  const std::string output = output_of("killed_in_exchange", GetParam(), 3);
  EXPECT_THAT(output, ContainsRegex("rank 0: rank_lost after [0-9]{1,4} ms: .*rank 2"));
  EXPECT_THAT(output, ContainsRegex("rank 1: rank_lost after [0-9]{1,4} ms: .*rank 2"));
}

// A stopped process is alive, so only the timeout (700 ms) finds it.
TEST_P(MpiRankLoss, AHangInACollectiveEndsAtTheTimeout) {
  const std::string output = output_of("stopped_in_collective", GetParam(), 2);
  EXPECT_THAT(output, ContainsRegex("rank 0: rank_lost after [0-9]{3,4} ms: rank 1 did not"));
}

TEST_P(MpiRankLoss, AHangInAnExchangeEndsAtTheTimeout) {
  const std::string output = output_of("stopped_in_exchange", GetParam(), 2);
  EXPECT_THAT(output, ContainsRegex("rank 0: rank_lost after [0-9]{3,4} ms: rank 1 did not"));
}

INSTANTIATE_TEST_SUITE_P(Transports, MpiRankLoss, testing::Values("windows", "messages"),
                         [](const auto& transport) { return transport.param; });

TEST(MpiLifetime, TheLastCommunicatorFinalisesMpi) {
  const std::string output = output_of("own_mpi", "windows", 3);
  for (const char* rank : {"rank 0", "rank 1", "rank 2"}) {
    EXPECT_THAT(output, HasSubstr(std::string(rank) + ": finalised early false, at the end true, "
                                                      "then not_supported"));
  }
  EXPECT_THAT(output, Not(HasSubstr("without calling"))) << "mpirun complains";
}

TEST(PeerWatch, SeesAChildEndAndAReusedId) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const mpi::ProcessIdentity self = mpi::identify_this_process();
    if (::write(ready[1], &self, sizeof(self)) != sizeof(self)) ::_exit(1);
    for (;;) ::pause();
  }
  mpi::ProcessIdentity peer;
  ASSERT_EQ(::read(ready[0], &peer, sizeof(peer)), static_cast<ssize_t>(sizeof(peer)));
  ASSERT_TRUE(mpi::can_watch(mpi::identify_this_process(), peer));
  EXPECT_FALSE(mpi::has_ended(peer));

  mpi::ProcessIdentity earlier_owner_of_the_id = peer;
  earlier_owner_of_the_id.start_ticks -= 1;
  EXPECT_TRUE(mpi::has_ended(earlier_owner_of_the_id));
  mpi::ProcessIdentity on_another_host = peer;
  on_another_host.host[0] = '?';
  EXPECT_FALSE(mpi::can_watch(mpi::identify_this_process(), on_another_host));

  ASSERT_EQ(::kill(child, SIGKILL), 0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(mpi::has_ended(peer)) << "a zombie";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(mpi::has_ended(peer)) << "reaped";
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace strata::test
