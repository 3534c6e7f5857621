#include "nccl/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace strata::nccl {
namespace {

// A loss of peers or network is what its peers call it too; the rest is about this machine.
ErrorCode code_of(ncclResult_t result) {
  return result == ncclRemoteError ? ErrorCode::rank_lost : ErrorCode::device;
}

}  // namespace

Error error_of(ncclResult_t result, std::string_view call, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  std::string text = fmt::format("{} failed: {}", call, ncclGetErrorString(result));
  if (detail != nullptr && *detail != '\0') text += fmt::format(" ({})", detail);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return Error(code_of(result), text + "; NCCL_DEBUG=INFO tells more");
}

void check(ncclResult_t result, std::string_view call, ncclComm_t comm) {
  if (result != ncclSuccess) throw error_of(result, call, comm);
}

std::string version_text(int version) {
  // Since 2.9 the code is major * 10000 + minor * 100 + patch (nccl.h).
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace strata::nccl
