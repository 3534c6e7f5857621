// One rank of a program that loses a rank, for mpi_rank_loss_test: mpi_rank_program SCENARIO
// TRANSPORT. The last rank is the victim; every other rank prints one line with what it saw:
//   rank <r>: <code> after <ms> ms: <message>
#include <fmt/format.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string_view>

#include "mpi/mpi_communicator.hpp"
#include "support/lost_rank.hpp"

namespace strata::test {
namespace {

struct Scenario {
  bool in_collective = false;  // else in exchange()
  int signal = SIGKILL;        // what the victim sends to itself
  std::chrono::milliseconds timeout{60'000};
};

std::optional<Scenario> scenario_of(std::string_view name) {
  constexpr std::chrono::milliseconds kShort{700};
  if (name == "killed_in_collective") return Scenario{.in_collective = true};
  if (name == "killed_in_exchange") return Scenario{};
  if (name == "stopped_in_collective") return Scenario{true, SIGSTOP, kShort};
  if (name == "stopped_in_exchange") return Scenario{false, SIGSTOP, kShort};
  return std::nullopt;
}

int lose_a_rank(const Scenario& scenario, bool windows) {
  CpuDevice device({.arena = 16_MiB});
  const auto communicator = create_mpi_communicator({.shared_memory = windows});
  communicator->attach(device);
  const std::uint32_t rank = communicator->rank().value;
  const std::uint32_t victim = communicator->size() - 1;
  const pid_t mine = ::getpid();
  const auto pids = communicator->exchange(std::as_bytes(std::span(&mine, 1)));
  communicator->set_timeout(scenario.timeout);
  if (rank == victim) ::raise(scenario.signal);
  const auto start = std::chrono::steady_clock::now();
  report(Rank{rank}, start,
         scenario.in_collective ? error_in_collective(*communicator, device)
                                : error_in_exchange(*communicator));
  // A stopped process would keep mpirun waiting.
  pid_t victim_pid = 0;
  std::memcpy(&victim_pid, pids.data() + victim * sizeof(pid_t), sizeof(pid_t));
  if (rank == 0 && ::kill(victim_pid, SIGKILL) != 0 && errno != ESRCH) return 3;
  return 0;
}

// Nobody but the communicator starts and ends MPI.
int own_mpi() {
  auto communicator = create_mpi_communicator({});
  const std::uint32_t rank = communicator->rank().value;
  auto part = communicator->split(rank % 2, 0);
  communicator.reset();
  int finalised = 0;
  MPI_Finalized(&finalised);
  const bool early = finalised != 0;
  part.reset();
  MPI_Finalized(&finalised);
  std::string second = "second start was accepted";
  try {
    create_mpi_communicator({});
  } catch (const Error& error) {
    second = name_of(error.code());
  }
  say(fmt::format("rank {}: finalised early {}, at the end {}, then {}\n", rank, early,
                  finalised != 0, second));
  return 0;
}

}  // namespace
}  // namespace strata::test

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string_view name = argv[1];
  if (name == "own_mpi") return strata::test::own_mpi();
  const auto scenario = strata::test::scenario_of(name);
  if (!scenario) return 2;
  return strata::test::lose_a_rank(*scenario, std::string_view(argv[2]) == "windows");
}
