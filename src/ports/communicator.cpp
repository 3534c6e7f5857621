#include "strata/communicator.hpp"

#include <fmt/format.h>

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

}  // namespace strata
