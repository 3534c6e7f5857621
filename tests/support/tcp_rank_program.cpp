// One rank of a program that loses a rank, for tcp_communicator_test: tcp_rank_program SCENARIO,
// with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. The last rank is the victim, which waits
// for a signal or ends at once; every other rank prints "ready", and then what it saw:
//   rank <r>: <code> after <ms> ms: <message>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <thread>

#include "support/lost_rank.hpp"
#include "tcp/tcp_communicator.hpp"

namespace strata::test {
namespace {

using Clock = std::chrono::steady_clock;

enum class Place { collective, exchange, idle };

struct Scenario {
  Place place = Place::idle;
  bool victim_ends = false;  // as it should; else it waits
  std::chrono::milliseconds timeout{60'000};
};

std::optional<Scenario> scenario_of(std::string_view name) {
  constexpr std::chrono::milliseconds kShort{700};
  if (name == "killed_in_collective") return Scenario{Place::collective};
  if (name == "killed_in_exchange") return Scenario{Place::exchange};
  if (name == "killed_while_idle") return Scenario{Place::idle};
  if (name == "stopped_in_collective") return Scenario{Place::collective, false, kShort};
  if (name == "stopped_in_exchange") return Scenario{Place::exchange, false, kShort};
  if (name == "ended_before_exchange") return Scenario{Place::exchange, true};
  return std::nullopt;
}

std::optional<Error> error_while_idle(const Communicator& communicator) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!communicator.failure() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return communicator.failure();
}

int lose_a_rank(const Scenario& scenario) {
  CpuDevice device({.arena = 16_MiB});
  const auto communicator = create_tcp_communicator(TcpOptions{});
  communicator->attach(device);
  communicator->set_timeout(scenario.timeout);
  communicator->exchange(std::as_bytes(std::span("!", 1)));
  if (communicator->rank().value + 1 == communicator->size()) {
    while (!scenario.victim_ends) ::pause();
    return 0;
  }
  say("ready\n");
  const auto start = Clock::now();
  switch (scenario.place) {
    case Place::collective:
      report(communicator->rank(), start, error_in_collective(*communicator, device));
      break;
    case Place::exchange:
      report(communicator->rank(), start, error_in_exchange(*communicator));
      break;
    case Place::idle: report(communicator->rank(), start, error_while_idle(*communicator)); break;
  }
  return 0;
}

}  // namespace
}  // namespace strata::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto scenario = strata::test::scenario_of(argv[1]);
  if (!scenario) return 2;
  try {
    return strata::test::lose_a_rank(*scenario);
  } catch (const strata::Error& error) {
    strata::test::say(fmt::format("failed: {}\n", error.what()));
    return 1;
  }
}
