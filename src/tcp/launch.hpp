// How a process that a launcher started learns which rank it is and where the ranks meet: the
// variables of torchrun, or those of Slurm's srun. Values only; reads the environment, so not
// while another thread changes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace strata::tcp {

// More ranks than a full mesh of connections can serve; a larger number is a mistake.
inline constexpr std::uint32_t kMaxRanks = 65'536;

struct Launch {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  // Among the ranks of this host, as the launcher counts them.
  std::optional<std::uint32_t> host_rank = {};
  std::optional<std::uint32_t> host_size = {};
  // Where rank 0 listens for the others; of no use with one rank.
  std::string master_addr = {};
  std::uint16_t master_port = 0;
};

// RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, or where RANK and WORLD_SIZE are missing
// SLURM_PROCID, SLURM_STEP_NUM_TASKS (else SLURM_NTASKS) and SLURM_LOCALID; MASTER_ADDR and
// MASTER_PORT when there is more than one rank. Where torchrun's agent keeps MASTER_PORT to itself
// (TORCHELASTIC_USE_AGENT_STORE=True) the ranks meet at the next port. Throws Error(config), one
// line that names the variable, its value and what to do.
Launch launch_from_environment();

// An all-gather among the ranks of a launch that the caller can already do: every rank passes as
// many bytes, and all get the bytes of all, in rank order. Blocks.
using AllGather = std::function<std::vector<std::byte>(std::span<const std::byte> mine)>;

}  // namespace strata::tcp
