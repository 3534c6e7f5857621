#include "tcp/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "strata/communicator.hpp"
#include "strata/error.hpp"

namespace strata::tcp {
namespace {

// A variable of the environment. One that is set to nothing counts as not set.
struct Variable {
  const char* name = "";
  std::string_view value;

  bool is_set() const { return !value.empty(); }
};

Variable read(const char* name) {
  const char* const value = std::getenv(name);
  return {name, value == nullptr ? std::string_view{} : std::string_view(value)};
}

Error config_error(const std::string& text) { return Error(ErrorCode::config, text); }

std::optional<std::uint64_t> parse(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// `meaning` completes the sentence "it must be <meaning>".
std::uint32_t number_in(const Variable& variable, std::uint64_t least, std::uint64_t most,
                        std::string_view meaning) {
  const auto value = parse(variable.value);
  if (!value || *value < least || *value > most) {
    throw config_error(fmt::format("{}=\"{}\" is not possible: it must be {}, from {} to {}",
                                   variable.name, variable.value, meaning, least, most));
  }
  return static_cast<std::uint32_t>(*value);
}

// Where a launcher says which rank this is, and of how many.
struct Numbering {
  Variable rank;
  Variable size;
  Variable host_rank;
  Variable host_size;
  std::string_view launcher;

  bool is_set() const { return rank.is_set() && size.is_set(); }
};

Numbering torchrun_numbering() {
  return {read("RANK"), read("WORLD_SIZE"), read("LOCAL_RANK"), read("LOCAL_WORLD_SIZE"),
          "torchrun"};
}

// A batch script's own shell has SLURM_PROCID=0 and the SLURM_NTASKS of the whole job, and is one
// process all the same; only what srun starts has the size of its step.
Numbering slurm_numbering() {
  Numbering slurm{
      read("SLURM_PROCID"), read("SLURM_STEP_NUM_TASKS"), read("SLURM_LOCALID"), {}, "srun"};
  if (!slurm.size.is_set() && !read("SLURM_JOB_ID").is_set()) slurm.size = read("SLURM_NTASKS");
  return slurm;
}

Numbering find_numbering() {
  const Numbering torchrun = torchrun_numbering();
  if (torchrun.rank.is_set() || torchrun.size.is_set()) return torchrun;
  const Numbering slurm = slurm_numbering();
  return slurm.is_set() ? slurm : torchrun;
}

void check_both_set(const Numbering& numbering) {
  const Variable& missing = numbering.rank.is_set() ? numbering.size : numbering.rank;
  const Variable& other = numbering.rank.is_set() ? numbering.rank : numbering.size;
  if (missing.is_set()) return;
  throw config_error(fmt::format(
      "{} is not set{}: start the ranks by torchrun or srun, or set RANK (0, 1, ...), WORLD_SIZE, "
      "MASTER_ADDR and MASTER_PORT for each process",
      missing.name,
      other.is_set() ? fmt::format(", and {}=\"{}\" is", other.name, other.value)
                     : " (nor does Slurm tell a rank)"));
}

void read_host_position(const Numbering& numbering, Launch& launch) {
  if (numbering.host_size.is_set()) {
    launch.host_size =
        number_in(numbering.host_size, 1, launch.size,
                  fmt::format("the number of ranks on this host, of {} in all", launch.size));
  }
  if (numbering.host_rank.is_set()) {
    launch.host_rank =
        number_in(numbering.host_rank, 0, launch.host_size.value_or(launch.size) - 1,
                  fmt::format("this process's position among the ranks of its host, of which {} "
                              "tells {}",
                              numbering.launcher, launch.host_size.value_or(launch.size)));
  }
}

void read_meeting_point(Launch& launch) {
  const Variable address = read("MASTER_ADDR");
  const Variable port = read("MASTER_PORT");
  for (const Variable& variable : {address, port}) {
    if (variable.is_set()) continue;
    throw config_error(fmt::format(
        "{} is not set, and {} ranks need a place to meet: set MASTER_ADDR to the host of rank 0 "
        "and MASTER_PORT to a free port of it, for all of them; under Slurm by export MASTER_ADDR="
        "$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n1) MASTER_PORT=29500",
        variable.name, launch.size));
  }
  launch.master_addr = std::string(address.value);
  launch.master_port = static_cast<std::uint16_t>(
      number_in(port, 1, 65'535, "a port of rank 0's host that nothing else uses"));
  // torchrun's agent then listens at MASTER_PORT itself.
  if (read("TORCHELASTIC_USE_AGENT_STORE").value == "True") {
    launch.master_port =
        static_cast<std::uint16_t>(launch.master_port + (launch.master_port == 65'535 ? -1 : 1));
  }
}

}  // namespace

Launch launch_from_environment() {
  const Numbering numbering = find_numbering();
  check_both_set(numbering);
  Launch launch;
  launch.size = number_in(numbering.size, 1, kMaxRanks, "the number of ranks");
  launch.rank = number_in(numbering.rank, 0, launch.size - 1,
                          fmt::format("below {}={}", numbering.size.name, launch.size));
  read_host_position(numbering, launch);
  if (launch.size > 1) read_meeting_point(launch);
  return launch;
}

}  // namespace strata::tcp

namespace strata {

bool launched_by_environment() {
  const tcp::Numbering numbering = tcp::find_numbering();
  if (!numbering.is_set()) return false;
  // What is no number shall be refused by name, not taken for one rank.
  return tcp::parse(numbering.size.value).value_or(2) > 1;
}

}  // namespace strata
