#include "strata/communicator.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

namespace strata {

void Communicator::agree(std::span<const std::byte> mine, std::string_view what) {
  if (size() == 1) return;
  const std::vector<std::byte> all = exchange(mine);
  std::string differing;
  for (std::uint32_t r = 1; r < size(); ++r) {
    if (std::memcmp(all.data(), all.data() + r * mine.size(), mine.size()) != 0) {
      differing += fmt::format("{}{}", differing.empty() ? "" : ", ", r);
    }
  }
  if (!differing.empty()) {
    throw Error(ErrorCode::diverged,
                fmt::format("ranks disagree on {}: rank {} differs from rank 0", what, differing));
  }
}

// Also told in a build without MPI, so that it refuses several ranks instead of training as many
// models.
bool launched_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* size = std::getenv(name);
    if (size != nullptr && std::strtol(size, nullptr, 10) > 1) return true;
  }
  return false;
}

}  // namespace strata
